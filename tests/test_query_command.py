"""`rails-ray query` as it prints what a server answered."""

from typing import Any

import pytest

from rails_ray import client
from rails_ray.commands.query import Query


def answer(is_short: bool) -> dict[str, Any]:
    result = {
        "items": [1],
        "titles": None,
        "scores": [0.5],
        "threshold": None,
        "num_kept": 1,
        "num_searched": 9,
        "is_truncated": False,
        "is_short": is_short,
        "is_known": None,
        "budget": None,
        "error": None,
        "certificate": {"is_exact": False, "gap": None, "reason": "a reason"},
    }
    coverage = {"num_chunks": None, "chunks_trained": None}
    return {"results": [result], "cutoff": {"top_k": 4}, "version": "v", "coverage": coverage}


@pytest.mark.parametrize(
    ("method", "remedy"),
    [
        ("inverted", "the buckets looked up hold no more items; raise --num-probes to look up more"),
        ("average", "the index found no more items; raise --nprobe or --ef-search to look at more"),
        ("ann", "the index found no more items; raise --nprobe or --ef-search to look at more"),
    ],
)
@pytest.mark.parametrize("is_short", [True, False])
def test_a_short_list_says_what_finds_more(
    method: str, remedy: str, is_short: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(client, "index", lambda url: {"query": {"text": "string"}})
    monkeypatch.setattr(client, "search", lambda *asked, **how: answer(is_short))
    Query(texts=("red",), method=method).run()
    told = " ".join(capsys.readouterr().out.split())
    assert (f"'red': {remedy}" in told) == is_short
    assert ("raise --" in told) == is_short
