"""A CUDA stream for each search, so that none waits for all that the others gave the GPU.

Memory that torch frees on a stream serves that stream alone, so streams are few and are used again. A search that finds
none free waits in the host.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from queue import SimpleQueue

import torch

NUM_STREAMS = 2  # of a GPU, in a process


class Streams:
    """The streams of a GPU that searches take turns on."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.free = SimpleQueue[torch.cuda.Stream]()
        for _ in range(NUM_STREAMS):
            self.free.put(torch.cuda.Stream(device))

    @contextmanager
    def one(self) -> Iterator[None]:
        """Carry out a search on a stream of its own, which first waits for what the GPU's default stream was given:
        items and queries come from there. What is found must be in the host's memory at the end."""
        stream = self.free.get()
        try:
            stream.wait_stream(torch.cuda.default_stream(self.device))
            with torch.cuda.stream(stream):
                yield
        finally:
            self.free.put(stream)


def own_stream(device: torch.device | str) -> AbstractContextManager[None]:
    """Return a stream for one search of a GPU; nothing on a CPU."""
    own = torch.device(device)
    if own.type != "cuda":
        return nullcontext()
    return _streams_of(torch.cuda.current_device() if own.index is None else own.index).one()


@lru_cache
def _streams_of(index: int) -> Streams:
    return Streams(torch.device("cuda", index))
