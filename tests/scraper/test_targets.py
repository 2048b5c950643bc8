"""Which addresses a URL stands for."""

import pytest

from sidecar.scraper.targets import MAX_ADDRESSES, Target, resolve, targets

CASES: dict[str, tuple[str, list[str], list[Target]]] = {
    "a name with one address keeps its name": (
        "http://engine:8000",
        ["10.0.0.7"],
        [Target("http://engine:8000", "", "engine:8000")],
    ),
    "a name that is not resolved": (
        "http://engine:8000",
        [],
        [Target("http://engine:8000", "", "engine:8000")],
    ),
    "localhost has two families and is one engine": (
        "http://localhost:8000/metrics",
        ["::1", "127.0.0.1", "127.0.0.1"],
        [Target("http://localhost:8000", "/metrics", "localhost:8000")],
    ),
    "a headless name is an address a pod": (
        "https://engine:8443/v1/metrics?model=m",
        ["10.0.0.8", "10.0.0.7", "10.0.0.8"],
        [
            Target("https://engine:8443", "/v1/metrics?model=m", "10.0.0.7:8443", "10.0.0.7"),
            Target("https://engine:8443", "/v1/metrics?model=m", "10.0.0.8:8443", "10.0.0.8"),
        ],
    ),
    "of two families the one with more addresses": (
        "http://engine",
        ["10.0.0.7", "fd00::1", "fd00::2"],
        [
            Target("http://engine", "", "[fd00::1]:80", "fd00::1"),
            Target("http://engine", "", "[fd00::2]:80", "fd00::2"),
        ],
    ),
    "an address": (
        "http://[fd00::1]:8000/",
        ["fd00::1"],
        [Target("http://[fd00::1]:8000", "", "[fd00::1]:8000")],
    ),
    "the port of TLS": ("https://engine", ["10.0.0.7"], [Target("https://engine", "", "engine:443")]),
}


@pytest.mark.parametrize(("url", "addresses", "found"), CASES.values(), ids=CASES)
def test_targets(url: str, addresses: list[str], found: list[Target]) -> None:
    assert targets(url, addresses) == found


def test_their_number_has_a_bound() -> None:
    assert len(targets("http://a", [f"10.0.{n // 250}.{n % 250}" for n in range(1000)])) == MAX_ADDRESSES


async def test_a_name_is_resolved() -> None:
    assert set(await resolve("http://127.0.0.2:8000")) == {"127.0.0.2"}
    assert set(await resolve("http://localhost")) & {"127.0.0.1", "::1"}
