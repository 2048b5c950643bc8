"""Buckets that depend on the model."""

import pytest

from sidecar.emulator.families import lengths

# the model's context; buckets, as vLLM makes them (the recorded page has 4096)
BUCKETS = {
    4096: (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000),
    500: (1, 2, 5, 10, 20, 50, 100, 200, 500),
    499: (1, 2, 5, 10, 20, 50, 100, 200),
    1: (1,),
}


@pytest.mark.parametrize(("context", "expected"), BUCKETS.items())
def test_buckets_of_lengths_end_at_the_context(context, expected) -> None:
    assert lengths(context) == expected
