"""The bench of filters: what it measures where no peer is installed, and that all find the same."""

from pathlib import Path

import numpy as np
import pytest

from jobs.benches import filters, filters_corpus, filters_peers, filters_ways
from jobs.benches.filters import Arguments
from jobs.benches.filters_corpus import SHARES, Corpus, K, recall


@pytest.mark.long
def test_everything_is_measured_and_what_is_built_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters_corpus, "NUM_QUERIES", 40)
    monkeypatch.setattr(filters_peers, "BEAMS", (40, 200))
    monkeypatch.setattr(filters_ways, "SHARES", (0.5, 0.01))
    few = Arguments(
        num_items=3000,
        num_rows=(2000,),
        num_mixture=200,
        repeats=1,
        folder=tmp_path,
        peers=("rails-ray",),
    )
    rows = list(filters.rows_of(few))
    assert {row["filter"] for row in rows if row["kind"] == "mask"} == {"equality", "range", "in of 100", "and of 3"}
    peers = [row for row in rows if row["kind"] == "peer"]
    assert [(row["share"], row["ef_search"]) for row in peers] == [
        (share, beam) for share in SHARES for beam in (None, 40, 200)
    ]
    for row in peers:
        assert 0 < row["p50_ms"] <= row["p99_ms"]
        is_exact = row["ef_search"] is None or row["share"] <= 0.01
        assert row["recall"] == 1.0 if is_exact else row["recall"] > 0.8, row
    ways = [row for row in rows if row["kind"] == "ways"]
    assert {row["index"] for row in ways} == {"none", "flat fp32", "flat sq8", "ivf fp32", "hnsw"}
    for row in ways:
        assert row["chosen_ms"] == row["gathered_ms" if row["is_gathered"] else "hidden_ms"]
    assert [row["peer"] for row in rows if row["kind"] == "built"] == ["rails-ray"]
    again = Arguments(num_items=3000, folder=tmp_path, parts=("peers",), peers=("rails-ray",))
    assert [row for row in filters.rows_of(again) if row["kind"] == "built"] == []


def test_each_share_has_its_best_rows(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path, 500)
    for share in (0.5, 0.01):
        left = np.flatnonzero(corpus.numbers < share)
        best = corpus.best(share)
        assert len(best) == len(corpus.queries)
        for query, own in zip(corpus.queries, best, strict=True):
            scores = {int(row): float(corpus.vectors[row] @ query) for row in left}
            least = sorted(scores.values(), reverse=True)[:K][-1]
            assert own == {row for row, score in scores.items() if score >= least - 1e-5}
        assert recall([[*own] for own in best], best) == 1.0
        assert recall([[] for _ in best], best) == 0.0
