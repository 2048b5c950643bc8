"""Children are awaited, explained when they fail, and ended by their id."""

import asyncio
import os
import socket

import pytest

from sidecar.emulator.children import ChildError, child, memorable


async def test_a_child_is_ready_with_its_address_and_gone_afterwards() -> None:
    async with child("emulate", "--listen", "127.0.0.1:0") as running:
        host, port = running.ready["listen"].split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.close()
        await writer.wait_closed()
        pid = running._process.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert running._process.returncode == 0


async def test_a_child_is_ended_when_the_parent_fails() -> None:
    with pytest.raises(RuntimeError):
        async with child("emulate", "--listen", "127.0.0.1:0") as running:
            raise RuntimeError
    assert running._process.returncode == 0


async def test_a_child_that_does_not_start_says_why() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ChildError, match=r"`sidecar emulate` ended with code 1\n.*could not listen"):
            async with child("emulate", "--listen", f"127.0.0.1:{port}"):
                pass


def test_a_memorable_port_is_taken_when_it_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert memorable("127.0.0.1", port) == "127.0.0.1:0"
    assert memorable("127.0.0.1", port) == f"127.0.0.1:{port}"
