"""A connection to a replica: its key, frames in any pieces, what is no frame, and its end."""

import asyncio
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from rails_ray.on_ray.serving.transport import frames, listener
from rails_ray.on_ray.serving.transport.codec import packed, question
from rails_ray.on_ray.serving.transport.frames import ASK, HEADER, HELLO, frame
from rails_ray.on_ray.serving.transport.listener import Address
from support.direct_calls import MESSAGE, OPEN, Replica, asked, one_known, run, until


class Raw:
    """A connection to a replica that sends whatever a test wants."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def to(cls, address: Address, first: list[bytes] | None = None) -> "Raw":
        parts = urlsplit(address.url)
        raw = cls(*await asyncio.open_connection(parts.hostname, parts.port))
        OPEN.append(raw)
        raw.writer.writelines(frame(0, HELLO, 0, address.key.encode()) if first is None else first)
        return raw

    async def answer(self) -> tuple[int, int, bytes]:
        """Number, status and content of the next answer."""
        size, number, _, status = HEADER.unpack(await self.reader.readexactly(HEADER.size))
        return number, status, await self.reader.readexactly(size)

    async def close(self) -> None:
        self.writer.close()


async def read_to_end(reader: asyncio.StreamReader) -> bytes:
    try:
        return await asyncio.wait_for(reader.read(), 10)
    except ConnectionResetError:
        return b""


@pytest.mark.parametrize("key", [b"", b"wrong", b"\xff" * 64, b"x" * 10_000])
def test_who_has_no_key_gets_nothing(key: bytes) -> None:
    async def scenario() -> None:
        replica = Replica()
        address = await replica.listener.address()
        assert address.key not in repr(address)
        question = frame(1, ASK, 1000, b"search\0", MESSAGE)
        for first in (frame(0, HELLO, 0, key) + question, question):
            raw = await Raw.to(address, first)
            assert await read_to_end(raw.reader) == b""
        assert replica.num_asked == 0

    run(scenario)


def test_who_shows_no_key_in_time_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "HELLO_S", 0.1)

    async def scenario() -> None:
        raw = await Raw.to(await Replica().listener.address(), frame(0, HELLO, 0, b"half of a key")[:1])
        assert await read_to_end(raw.reader) == b""

    run(scenario)


def test_only_methods_that_routers_ask_are_there() -> None:
    async def scenario() -> None:
        replica = Replica()
        raw = await Raw.to(await replica.listener.address())
        for number, method in enumerate((b"listener", b"", b"\xff", b"search"), 1):
            raw.writer.writelines(frame(number, ASK, 1000, method + b"\0", MESSAGE))
        answers = {number: status for number, status, _ in [await raw.answer() for _ in range(4)]}
        assert answers == {1: 404, 2: 404, 3: 404, 4: 200}
        assert replica.num_asked == 1

    run(scenario)


def test_a_message_that_is_none_is_an_error_of_the_caller_alone() -> None:
    async def scenario() -> None:
        replica = Replica()
        raw = await Raw.to(await replica.listener.address())
        for body in (b"", b"\xc1", packed(["ours"]), packed(3), packed(["ours", 3])):
            raw.writer.writelines(frame(7, ASK, 1000, b"search\0", body))
            assert (await raw.answer())[:2] == (7, 500)
        assert (replica.num_asked, replica.listener.num_ongoing) == (0, 0)

    run(scenario)


def test_half_a_frame_keeps_nobody_waiting_and_what_is_no_frame_ends_its_connection_alone() -> None:
    async def scenario() -> None:
        replica, handle, replicas = await one_known()
        address = await replica.listener.address()
        whole = b"".join(frame(1, ASK, 1000, b"search\0", MESSAGE))
        half = await Raw.to(address)
        half.writer.write(whole[:-3])
        await half.writer.drain()
        assert (await asked(replicas, handle)).tolist() == [0, 2, 4]
        half.writer.write(whole[-3:])
        assert (await half.answer())[:2] == (1, 200)
        half.writer.write(whole[: len(whole) // 2])
        await half.writer.drain()
        half.writer.close()
        nonsense = await Raw.to(address)
        nonsense.writer.write(b"POST /search HTTP/1.1\r\n\r\n")
        assert await read_to_end(nonsense.reader) == b""
        assert (await asked(replicas, handle)).tolist() == [0, 2, 4]
        assert (replica.listener.num_ongoing, handle.num_by_handle) == (0, 0)

    run(scenario)


def test_bytes_may_come_one_by_one() -> None:
    async def scenario() -> None:
        raw = await Raw.to(await Replica().listener.address())
        for number in (1, 2):
            for byte in b"".join(frame(number, ASK, 1000, b"search\0", MESSAGE)):
                raw.writer.write(bytes([byte]))
                await raw.writer.drain()
        assert [(await raw.answer())[:2] for _ in range(2)] == [(1, 200), (2, 200)]

    run(scenario)


def test_a_connection_that_ends_gives_up_its_calls_and_the_next_call_makes_another() -> None:
    async def scenario() -> None:
        replica, _, replicas = await one_known()
        replica.may_go_on.clear()
        calls = [asyncio.create_task(replicas.ask("search", MESSAGE, 5)) for _ in range(3)]
        await until(lambda: replica.ongoing == 3)
        [known] = replicas._known
        known.link.close()
        assert await asyncio.gather(*calls) == [None] * 3  # to be asked by handle
        await until(lambda: replica.num_cancelled == 3)
        replica.may_go_on.set()
        await replicas.look()
        answer = await replicas.ask("search", MESSAGE, 5)
        assert answer is not None
        assert answer.value.tolist() == [0, 2, 4]

    run(scenario)


def test_a_router_that_reads_nothing_makes_its_own_answers_wait_alone() -> None:
    async def scenario() -> None:
        replica = Replica(most_at_once=50)
        address = await replica.listener.address()
        large = question("ours", [np.zeros(2**20)])
        stalled, other = await Raw.to(address), await Raw.to(address)
        connection: Any = stalled.writer.transport
        connection.pause_reading()
        for number in range(1, 21):
            stalled.writer.writelines(frame(number, ASK, 60_000, b"search\0", large))
            await stalled.writer.drain()
        await until(lambda: replica.num_asked == 20)
        other.writer.writelines(frame(1, ASK, 1000, b"search\0", MESSAGE))
        assert (await other.answer())[:2] == (1, 200)
        connection.resume_reading()
        assert {(await stalled.answer())[1] for _ in range(20)} == {200}

    run(scenario)


def test_a_frame_that_is_too_large_is_refused_where_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "LARGEST", 10)
    with pytest.raises(ValueError, match="a frame must hold at most 10 bytes, got 11"):
        frame(1, ASK, 0, b"12345678901")
