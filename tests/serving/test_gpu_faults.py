"""Errors of CUDA as ours. A function stands in for the GPU, which works, fails, or computes wrongly."""

import asyncio
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from rails_ray import local
from rails_ray.errors import LostGpuError, UnavailableError
from rails_ray.search.rounds import AskShards, Rounds
from rails_ray.serving import gpu_faults
from rails_ray.serving.gpu_faults import check_gpu, gpu_failures, one_and_one
from rails_ray.serving.http.single import SingleProcessServer
from support.examples import publish_here

LOST = "CUDA error: unspecified launch failure\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions."
Gpu = Callable[[float | Exception], None]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """Says what the GPU gives for 1 + 1."""

    def gives(value: float | Exception) -> None:
        def computed(device: str) -> float:
            assert device == "cuda"
            if isinstance(value, Exception):
                raise value
            return value

        monkeypatch.setattr(gpu_faults, "one_and_one", computed)

    return gives


def fail(error: Exception, *_: object) -> None:
    raise error


def test_a_gpu_that_works_and_one_that_does_not(gpu: Gpu) -> None:
    assert one_and_one("cpu") == 2
    gpu(2.0)
    check_gpu("cuda")
    gpu(RuntimeError(LOST))
    with pytest.raises(
        LostGpuError,
        match=re.escape("device cuda must work, got an error (CUDA error: unspecified launch failure): start another"),
    ):
        check_gpu("cuda")
    gpu(0.0)
    with pytest.raises(LostGpuError, match=re.escape("device cuda must work, got 0 for 1 + 1: start another process")):
        check_gpu("cuda")


@pytest.mark.parametrize("error", [RuntimeError(LOST), RuntimeError("cuBLAS failed"), torch.AcceleratorError(LOST)])
def test_an_error_of_cuda_is_a_lost_gpu_if_it_works_no_more(gpu: Gpu, error: Exception) -> None:
    search = gpu_failures("cuda")(partial(fail, error))
    gpu(error)
    with pytest.raises(LostGpuError, match="device cuda must work, got an error"):
        search()
    gpu(2.0)
    with pytest.raises(type(error), match=re.escape(str(error))):
        search()


def test_too_little_memory_for_a_search(gpu: Gpu) -> None:
    for error in (torch.OutOfMemoryError("CUDA out of memory."), RuntimeError("CUDA error 2 out of memory")):
        with pytest.raises(UnavailableError, match="must fit into the free memory of the GPU, got more: ask for fewer"):
            gpu_failures("cuda")(partial(fail, error))()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_other_errors_stay_as_they_are(gpu: Gpu, device: str) -> None:
    gpu(RuntimeError(LOST))
    for error in (ValueError("CUDA"), RuntimeError("shapes differ")):
        with pytest.raises(type(error), match=re.escape(str(error))):
            gpu_failures(device)(partial(fail, error))()
    assert gpu_failures(device)(lambda: 7)() == 7


def test_a_server_of_one_process_that_lost_its_gpu_is_not_healthy(
    tmp_path: Path, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_here(tmp_path, 2)
    single = SingleProcessServer(local.open(str(tmp_path)))
    assert asyncio.run(single.health())["status"] == "ok"
    shards = single.loaded.shards
    for shard in shards:
        shard.device = "cuda"
        monkeypatch.setattr(shard, "describe", partial(fail, RuntimeError(LOST)))
    gpu(RuntimeError(LOST))
    with pytest.raises(LostGpuError, match="device cuda must work"):
        asyncio.run(single.health())

    def rounds() -> Rounds[object]:
        return (yield AskShards("describe", ([], None, [])))

    with pytest.raises(LostGpuError, match="device cuda must work"):
        single.loaded.held.advance(rounds())


def test_a_gpu_that_is_lost_while_queries_are_encoded(
    tmp_path: Path, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_here(tmp_path)
    version = local.open(str(tmp_path))
    encoder = version.engine.encoder
    encoder.device = "cuda"
    monkeypatch.setattr(encoder.model, "query_features", partial(fail, RuntimeError(LOST)))
    gpu(RuntimeError(LOST))
    for ask in (version.search, version.embed):
        with pytest.raises(LostGpuError, match="device cuda must work, got an error"):
            ask(["red"])
