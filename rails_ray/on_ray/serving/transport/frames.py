"""Frames: many questions and their answers at once on one connection, each with a number of its own.

    client  --HELLO key-->                                first, or the connection is closed
    client  --ASK number, milliseconds left, method, message-->
    client  --CANCEL number-->                            nobody waits for the answer any more
    server  --ANSWER number, status, message-->           status as in HTTP; no message but with 200

A frame is the length of what follows its first 17 bytes (4 bytes), a number (8), a kind (1), a detail (4: milliseconds,
or a status), all little-endian, and its content. That of a question is the method, a zero byte and the message.
"""

import asyncio
import struct
from abc import ABC, abstractmethod
from collections import deque
from typing import Any, NamedTuple

HEADER = struct.Struct("<IQBI")
HELLO, ASK, CANCEL, ANSWER = range(4)
LARGEST = 2**30  # bytes of content; a sender's error, or no frame at all, is larger
LONGEST_HELLO = 256
MOST_MS = 2**32 - 1


class Frame(NamedTuple):
    number: int
    kind: int
    detail: int
    content: bytes


def frame(number: int, kind: int, detail: int = 0, *content: bytes) -> list[bytes]:
    """The bytes of a frame, in pieces.

    Raises:
        ValueError: if its content is too large.
    """
    size = sum(map(len, content))
    if size > LARGEST:
        raise ValueError(f"a frame must hold at most {LARGEST} bytes, got {size}")
    return [HEADER.pack(size, number, kind, detail), *content]


class FrameProtocol(asyncio.Protocol, ABC):
    """One end of a connection. A sender waits while the other end does not read.

    largest: bytes of content that a frame may have; where one has more, the connection is closed.
    """

    largest = LARGEST

    def __init__(self) -> None:
        self.transport: Any = None  # uvloop's is no `asyncio.Transport`
        self._came = bytearray()
        self._is_paused = False
        self._waiting = deque[asyncio.Future[None]]()

    @abstractmethod
    def received(self, frame: Frame) -> None:
        """Do what a frame asks for."""

    @abstractmethod
    def lost(self) -> None:
        """Clean up, as the connection is closed."""

    async def send(self, pieces: list[bytes]) -> None:
        """Send a frame, once the other end reads.

        Raises:
            ConnectionError: if the connection is closed.
        """
        while self._is_paused:
            waits = asyncio.get_running_loop().create_future()
            self._waiting.append(waits)
            await waits
        self.send_now(pieces)

    def send_now(self, pieces: list[bytes]) -> None:
        """Send a small frame. Raises ConnectionError if the connection is closed."""
        if self.transport is None or self.transport.is_closing():
            raise ConnectionResetError("the connection is closed")
        self.transport.writelines(pieces)

    def close(self) -> None:
        """Close the connection at once."""
        if self.transport is not None:
            self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._came += data
        place = 0
        while len(self._came) - place >= HEADER.size:
            size, number, kind, detail = HEADER.unpack_from(self._came, place)
            if size > self.largest:
                self.close()
                return
            end = place + HEADER.size + size
            if len(self._came) < end:
                break
            content = bytes(memoryview(self._came)[place + HEADER.size : end])
            place = end
            self.received(Frame(number, kind, detail, content))
        del self._came[:place]

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        while self._waiting:
            _wake(self._waiting.popleft())

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        self.resume_writing()
        self.lost()


def _wake(waits: asyncio.Future[None]) -> None:
    if not waits.done():
        waits.set_result(None)
