"""The catalogue keeps the rules of Prometheus's naming, and agrees with the core's closed lists."""

import re
from typing import get_args

import pytest

from sidecar import catalogue
from sidecar.catalogue import FAMILIES, LABELS, Family
from sidecar.core.dialects import route_of
from sidecar.core.events import DURING
from sidecar.core.outcome import Outcome

IDS = [family.name for family in FAMILIES]
each_family = pytest.mark.parametrize("family", FAMILIES, ids=IDS)
SUFFIX = {"counter": "_total", "info": "_info"}


def test_no_name_is_given_twice() -> None:
    assert len(set(IDS)) == len(FAMILIES)


def test_every_family_that_is_declared_is_listed() -> None:
    declared = [value for value in vars(catalogue).values() if isinstance(value, Family)]
    assert set(declared) == set(FAMILIES)


@each_family
def test_names(family: Family) -> None:
    """`llm_`, no colon, `_total` on counters and nowhere else, the unit before it."""
    assert re.fullmatch(r"llm_[a-z][a-z_]*[a-z]", family.name)
    assert family.name.endswith("_total") == (family.kind == "counter")
    assert family.name.endswith("_info") == (family.kind == "info")
    stem = family.name.removesuffix(SUFFIX.get(family.kind, ""))
    assert stem.endswith(f"_{family.unit}" if family.unit else "")
    assert not re.search(r"_(ms|milliseconds|minutes|percent|bucket|sum|count|created)(_|$)", stem)


@each_family
def test_a_time_or_a_length_says_its_unit(family: Family) -> None:
    measured = family.name.removesuffix("_total").rsplit("_", 1)[-1]
    assert (family.unit == measured) == (measured in ("seconds", "tokens"))


@each_family
def test_help_is_one_plain_sentence(family: Family) -> None:
    """It is written to the page as it stands, without escaping."""
    assert family.help.endswith(".")
    assert not set(family.help) & set('\n\\"|')


@each_family
def test_buckets(family: Family) -> None:
    """Only histograms have them, not those that keep the engine's; they rise; with +Inf at most 16."""
    own = family.kind == "histogram" and family is not catalogue.ENGINE_PHASE
    assert bool(family.buckets) == own
    assert list(family.buckets) == sorted(set(family.buckets))
    assert len(family.buckets) + 1 <= 16
    assert all(isinstance(bound, float) for bound in family.buckets)


@each_family
def test_labels_are_known(family: Family) -> None:
    assert set(family.labels) <= set(LABELS)
    assert len(set(family.labels)) == len(family.labels)


def test_gaps_are_dense_where_tokens_are_fast() -> None:
    assert len([bound for bound in catalogue.GAP_BUCKETS if 0.001 <= bound <= 0.010]) >= 6


def test_first_tokens_are_dense_where_promises_are_made() -> None:
    assert len([bound for bound in catalogue.FIRST_TOKEN_BUCKETS if 0.010 <= bound <= 2.0]) >= 12


def test_the_rest_goes_up_to_ten_minutes() -> None:
    for family in (catalogue.REQUEST_DURATION, catalogue.STALL, catalogue.WRITE_WAIT, catalogue.UPLOAD):
        assert family.buckets[-1] == 600.0


def test_lengths_go_by_powers_of_four() -> None:
    assert catalogue.LENGTH_BUCKETS[:4] == (1.0, 4.0, 16.0, 64.0)


def test_gaps_of_chunks_and_of_tokens_share_their_bounds() -> None:
    """The gap sink searches once for both."""
    assert catalogue.ICL.buckets == catalogue.ITL.buckets


def test_outcomes_are_those_of_the_core() -> None:
    assert get_args(Outcome) == catalogue.OUTCOMES


def test_what_a_stream_was_doing_is_what_the_core_says() -> None:
    assert set(LABELS["during"]) == {word for word in DURING if word}


PATHS = [
    b"/v1/chat/completions", b"/v1/completions", b"/v1/responses", b"/v1/messages", b"/generate",
    b"/v1/embeddings", b"/anything",
]  # fmt: skip


def test_operations_are_those_of_the_core() -> None:
    assert {route_of("POST", path).operation for path in PATHS} == set(catalogue.OPERATIONS)
