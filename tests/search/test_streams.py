"""Searches of a GPU take turns on a few streams. What CUDA does is noted, as CI has no GPU."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from rails_ray.search import streams
from rails_ray.search.streams import NUM_STREAMS, Streams, own_stream
from rails_ray.serving import local, shard_search
from support.examples import publish_here

HERE = torch.device("cuda", 0)


class Noted:
    """Stands for `torch.cuda`: its streams, and which of them a thread is on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waits, self.made = list[tuple[object, object]](), list[object]()
        self.local = threading.local()
        monkeypatch.setattr(torch.cuda, "Stream", self.new_stream)
        monkeypatch.setattr(torch.cuda, "stream", self.on)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "default_stream", lambda device: f"default of {device}")

    def new_stream(self, device: torch.device) -> Any:
        noted = self

        class Made:
            def wait_stream(self, other: object) -> None:
                noted.waits.append((self, other))

        self.made.append(Made())
        return self.made[-1]

    @contextmanager
    def on(self, stream: object) -> Iterator[None]:
        self.local.current = stream
        try:
            yield
        finally:
            self.local.current = None


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Noted]:
    streams._streams_of.cache_clear()
    yield Noted(monkeypatch)
    streams._streams_of.cache_clear()


def test_searches_at_the_same_time_have_streams_of_their_own_and_another_waits(noted: Noted) -> None:
    own, inside = Streams(HERE), threading.Barrier(NUM_STREAMS + 1)
    waiting = threading.Event()

    def search(number: int) -> object:
        with own.one():
            if number < NUM_STREAMS:
                inside.wait(60)
                waiting.wait(60)
            return noted.local.current

    with ThreadPoolExecutor(NUM_STREAMS + 1) as pool:
        first = [pool.submit(search, number) for number in range(NUM_STREAMS)]
        inside.wait(60)
        assert own.free.empty()
        last = pool.submit(search, NUM_STREAMS)
        waiting.set()
        used = [running.result(60) for running in first]
        assert last.result(60) in used
    assert len(set(used)) == NUM_STREAMS == len(noted.made)
    assert own.free.qsize() == NUM_STREAMS


def test_a_search_waits_for_the_default_stream_and_gives_its_stream_back_after_an_error(noted: Noted) -> None:
    def refused() -> None:
        with own_stream("cuda"):
            assert noted.waits[-1] == (noted.local.current, "default of cuda:0")
            raise ValueError("refused")

    for _ in range(2 * NUM_STREAMS):
        with pytest.raises(ValueError, match="refused"):
            refused()
    assert len(noted.made) == NUM_STREAMS
    with own_stream(HERE), own_stream("cuda:1"):
        assert noted.waits[-1] == (noted.local.current, "default of cuda:1")
    assert len(noted.made) == 2 * NUM_STREAMS


def test_on_a_cpu_there_is_none(noted: Noted) -> None:
    with own_stream("cpu"):
        assert not noted.made


def test_all_that_a_shard_computes_is_on_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish_here(tmp_path, 1)
    version, entered = local.open(str(tmp_path)), list[str]()

    def noted_stream(device: str) -> Any:
        entered.append(device)
        return nullcontext()

    monkeypatch.setattr(shard_search, "own_stream", noted_stream)
    version.search(["red"], k=3)
    assert entered == ["cpu"]
    version.search(["red"], cutoff={"nucleus": 0.5})  # a sum over all items, and then a search
    assert entered == ["cpu"] * 3
    version.explain("red", version.search(["red"], k=1).results[0].items)
    assert entered == ["cpu"] * 5
