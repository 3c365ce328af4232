"""What a request brings is sent to a GPU from pinned memory; elsewhere nothing is pinned."""

import pytest
import torch
from torch import Tensor

from rails_ray.kernels.uploads import upload
from rails_ray.search import masks, searcher
from rails_ray.search.masks import Exclusions, Mask, Remaining
from rails_ray.search.methods import bm25
from rails_ray.search.spec import SearchSpec
from support.gpu_copies import note_copies
from support.retrievers import exact_case

HALF = torch.arange(40) % 2 == 0
ALL_BUT_ONE = torch.arange(40) != 7


@pytest.mark.parametrize("device", ["cuda", "cuda:1", torch.device("cuda", 0)])
def test_a_copy_to_a_gpu_is_made_from_pinned_memory_without_a_wait(
    device: str | torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = note_copies(monkeypatch)
    given = torch.arange(6.0)[1:]
    assert torch.equal(upload(given, device), given)
    assert copies == [(True, True)]


def test_elsewhere_nothing_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    copies = note_copies(monkeypatch)
    given = torch.arange(6.0)
    assert upload(given, "cpu") is given
    assert upload(given, None) is given
    there = given.to("meta")
    assert upload(there, "meta") is there
    assert not copies


@pytest.mark.parametrize(
    ("mask", "num"),
    [
        (Exclusions.of([[3, 4], []]), 1),
        (Remaining.of(HALF, [[], []]), 1),
        (Remaining.of(ALL_BUT_ONE, [[3], []]), 2),
    ],
)
def test_what_a_mask_hides_is_uploaded(mask: Mask, num: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = list[torch.device]()

    def noted(tensor: Tensor, device: torch.device) -> Tensor:
        sent.append(device)
        return tensor

    monkeypatch.setattr(masks, "upload", noted)
    mask.hide(torch.zeros(2, 40))
    assert sent == [torch.device("cpu")] * num


@pytest.mark.parametrize("kind", ["codes", "terms"])
def test_rows_of_some_items_are_sent_to_the_items(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    searchable_of, items, query, _ = exact_case((kind, "brute_force"), 3, 20, 0)
    sent = list[str]()

    def noted(rows: Tensor, device: torch.device) -> Tensor:
        sent.append(device.type)
        return rows

    for module in (searcher, bm25):
        monkeypatch.setattr(module, "upload", noted)
    searchable_of(items).some(torch.tensor([3, 7])).search(query, SearchSpec(2))
    assert sent == ["cpu"]
