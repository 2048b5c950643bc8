"""Every test with a `loop_factory` argument runs on stock asyncio and on uvloop."""

import asyncio

import pytest

uvloop = pytest.importorskip("uvloop")

FACTORIES = {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "loop_factory" in metafunc.fixturenames:
        metafunc.parametrize("loop_factory", list(FACTORIES.values()), ids=list(FACTORIES))
