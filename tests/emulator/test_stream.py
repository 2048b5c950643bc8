"""What one streamed response writes, and when."""

import json
import random

from sidecar.emulator.answers import answer
from sidecar.emulator.asked import read_chat
from sidecar.emulator.options import Api, Options
from sidecar.emulator.stream import MOST_UNSENT, Stream
from sidecar.emulator.wire import DONE, Reply, chat_events

PLAIN = Options()


class Transport:
    """Remembers every write; `unsent` bytes are in its buffer."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.unsent, self.closing = 0, False

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def is_closing(self) -> bool:
        return self.closing

    def write(self, data: bytes) -> None:
        self.writes.append(data)


def opened(options: Options = PLAIN, *, n: int = 1, tokens: int = 6) -> tuple[Transport, Stream]:
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": tokens, "n": n}
    asked = read_chat(json.dumps(body).encode(), ("m",), 1000)
    answers = tuple(answer(asked, 9, random.Random(0)) for _ in range(n))
    transport = Transport()
    return transport, Stream(transport, chat_events(Reply(asked, answers, "id", 1)), options, True)


def events(write: bytes) -> int:
    return write.count(b"data: ")


async def test_a_step_is_one_write_with_a_chunk_for_each_event() -> None:
    transport, stream = opened(n=3)
    stream.deliver([0, 1, 2])
    stream.deliver([0, 1, 2])
    assert [events(write) for write in transport.writes] == [3 + 3, 3], "with the first token all roles"
    size, _, rest = transport.writes[1].partition(b"\r\n")
    assert rest[int(size, 16) :].startswith(b"\r\n")


async def test_a_reader_that_is_too_slow_gets_several_tokens_in_one_event_later() -> None:
    transport, stream = opened()
    stream.deliver([0])
    transport.unsent = MOST_UNSENT + 1
    for _ in range(3):
        stream.deliver([0])
    assert len(transport.writes) == 1
    transport.unsent = 0
    stream.deliver([0])
    assert [events(write) for write in transport.writes] == [2, 1]
    said = json.loads(transport.writes[1].partition(b"data: ")[2].strip())
    assert len(said["choices"][0]["delta"]["content"].split()) == 4


async def test_the_last_token_goes_out_to_a_slow_reader_too() -> None:
    transport, stream = opened(tokens=3)
    transport.unsent = MOST_UNSENT + 1
    for _ in range(3):
        stream.deliver([0])
    assert b'"finish_reason":"length"' in b"".join(transport.writes)


async def test_a_stream_interval_counts_from_the_second_token_of_each_choice() -> None:
    transport, stream = opened(Options(api=Api(stream_interval=2)), n=2)
    for _ in range(6):
        stream.deliver([0, 1])
    assert [events(write) for write in transport.writes] == [2 + 2, 2, 2, 2]


async def test_bytes_that_are_held_back_go_out_together() -> None:
    transport, stream = opened(Options(hold_back=0.001))
    for _ in range(6):
        stream.deliver([0])
    assert transport.writes == []
    await stream.end([DONE])
    assert [events(write) for write in transport.writes] == [1 + 6 + 1]


async def test_nothing_is_written_to_a_connection_that_is_closing() -> None:
    transport, stream = opened()
    transport.closing = True
    stream.deliver([0])
    assert transport.writes == []


async def test_comments_end_with_the_first_event() -> None:
    transport, stream = opened()
    stream.keep_alive(3600.0)
    stream._comment(3600.0)
    assert transport.writes == [b"e\r\n: keep-alive\n\n\r\n"], "as recorded: vllm/keepalive/ka_queued"
    stream.deliver([0])
    stream._comment(3600.0)
    assert len(transport.writes) == 2
    stream.close()
