"""What workers tell each other before and while they exchange tensors, and what each says when that fails."""

import re
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from rails_ray.training.collectives.each import from_each
from rails_ray.training.collectives.gather import gather, gather_constants
from rails_ray.training.collectives.group import Place, num_workers, place_of, rank
from rails_ray.training.collectives.processes import in_processes
from rails_ray.training.collectives.ring import shift_on_ring
from support import faulty_worker
from support.cross_device_worker import BASELINES, FORMS


@pytest.fixture(scope="module")
def unlike() -> list[dict[str, str]]:
    return in_processes(faulty_worker.unlike, 2)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("size", r"ValueError: embeddings must be of one size and dtype on all workers, got \[lines, 3\] float32 on "
                 r"worker 0 and \[lines, 4\] float32 on worker 1: start all of them with the same config"),
        ("axes", r"ValueError: .*got \[lines, 3\] float32 on worker 0 and \[lines, 3, 1\] float32 on worker 1"),
        ("dtype", r"ValueError: .*got \[lines, 3\] float32 on worker 0 and \[lines, 3\] bfloat16 on worker 1"),
        ("NaN", r"FloatingPointError: embeddings must be finite on all workers, got NaN or an infinity on worker 1: "
                r"lower training\.learning_rate"),
        ("infinity", r"FloatingPointError: .*got NaN or an infinity on worker 0 and 1"),
        ("number", r"ValueError: .*got none on worker 0 and \[lines\] float32 on worker 1"),
        ("lines", "no error"),
    ],
)  # fmt: skip
def test_every_worker_says_the_same_of_tensors_that_do_not_go_together(
    what: str, message: str, unlike: list[dict[str, str]]
) -> None:
    first, second = (of_rank[what] for of_rank in unlike)
    assert first == second
    assert re.match(message, first), first


@pytest.fixture(scope="module")
def exchanged() -> list[dict[str, Any]]:
    return in_processes(faulty_worker.exchanged, 3)


@pytest.mark.parametrize("side", ["query", "item"])
@pytest.mark.parametrize("form", [*FORMS, *BASELINES])
@pytest.mark.parametrize("model", ["towers dot", "towers mixture"])
def test_every_worker_names_the_one_whose_model_is_broken(
    side: str, form: str, model: str, unlike: list[dict[str, str]]
) -> None:
    kind = "queries" if side == "query" else "items"
    for of_rank in unlike:
        assert of_rank[f"{side} {form} {model}"] == (
            f"FloatingPointError: embeddings of {kind} must be finite on all workers, got NaN or an infinity on "
            "worker 1: lower training.learning_rate"
        )


def test_lines_are_gathered_by_rank_and_gradients_summed_for_their_owner(exchanged: list[dict[str, Any]]) -> None:
    for number, result in enumerate(exchanged):
        assert result["place"] == (number, [0, 1, 2])
        assert result["lines"] == [[10, 11], [20, 21], [22, 23]]
        assert result["rows"] == [10, 20, 21]
        assert result["passed back"] == [[111, 111]] * number  # 1 + 10 + 100
        assert result["of constants"] == [[10**number] * 2] * number
        assert result["narrow"] == [[1 + 2**-7]] * number


def test_a_ring_hands_on_lines_of_any_number(exchanged: list[dict[str, Any]]) -> None:
    assert [result["shifted"] for result in exchanged] == [
        [[0, 1, 2], [False, True, True]],
        [[0], [False]],
        [[0, 1], [False, True]],
    ]


@pytest.mark.parametrize("call", ["sharing", "passing on"])
def test_a_worker_that_dies_is_missed_at_once(call: str, tmp_path: Path) -> None:
    started = time.monotonic()
    with pytest.raises(FileNotFoundError):  # a dead worker gives nothing back
        in_processes(partial(faulty_worker.one_dies, call, tmp_path / "told"), 2, timeout_s=300.0)
    assert time.monotonic() - started < 60  # not the timeout
    assert re.fullmatch(
        r"LostWorkerError: all 2 workers must take part in [a-z ]+, worker 0 got: .+: "
        "another worker has died or has taken too long",
        (tmp_path / "told").read_text(),
    )


@pytest.mark.long
def test_a_worker_that_does_not_come_is_missed_after_the_timeout() -> None:
    first, _ = in_processes(faulty_worker.one_is_late, 2, timeout_s=2.0)
    assert re.match(
        "LostWorkerError: all 2 workers must take part in sharing embeddings, worker 0 got: .*[Tt]imed? ?out.*: "
        "another worker has died or has taken too long",
        first,
    ), first


def test_alone_every_exchange_is_the_identity() -> None:
    tensors = [torch.ones(2, 3), torch.zeros(2)]
    place = place_of(tensors, "embeddings")
    assert place == Place(0, [2])
    assert (rank(), num_workers()) == (0, 1)
    assert place.own == slice(0, 2)
    assert gather(tensors, place) is tensors
    assert gather_constants(tensors, place) is tensors
    assert shift_on_ring(tensors, 2) is tensors
    assert from_each(2.0) == [2.0]
