"""Answers of BM25: items that share a term with the query, and others only if a request asks for them."""

from pathlib import Path

import pyarrow as pa
import pytest
import torch

from rails_ray.families.bm25.model import Bm25Model
from rails_ray.families.config import to_json
from rails_ray.modules import weight_files
from rails_ray.serving import local
from rails_ray.serving.local import LocalVersion
from rails_ray.storage import manifest, parts, versions
from rails_ray.storage.described import WEIGHTS
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.parquet import item_part
from support.examples import small_bm25_config

TEXTS = ["red car", "red boat", "blue boat", "green sea", "old sea"]


@pytest.fixture(scope="module")
def version(tmp_path_factory: pytest.TempPathFactory) -> LocalVersion:
    root = tmp_path_factory.mktemp("bm25")
    storage, model = Storage(str(root)), Bm25Model(k1=1.2, b=0.75, max_terms=8).eval()
    model.fit(TEXTS)
    planned = parts.plan([3, 2], part_items=3)
    with torch.no_grad():
        for part in planned:
            texts = TEXTS[part.first_row : part.first_row + part.num_items]
            state = model.encode_items(model.item_features(texts))
            parts.write_part(storage, "v1", part, item_part(pa.table({"item_id": texts}), state))
    files = {manifest.CONFIG: to_json(small_bm25_config()), WEIGHTS: weight_files.to_bytes(model)}
    encoded = parts.finish(
        storage, "v1", planned, run="r", query={"text": "string"}, files=files.items(), cutoff_mass=None
    )
    versions.publish(storage, encoded, "2026-01-01T00:00:00Z")
    return local.open(str(Path(root)))


@pytest.mark.parametrize(
    "how",
    [{}, {"k": 4}, {"k": 100}, {"cutoff": {"top_k": 5}}, {"cutoff": {"score": -7.0}}, {"cutoff": {"score": 0.0}}],
)
def test_items_that_share_no_term_are_not_listed(version: LocalVersion, how: dict) -> None:
    red, boat, other = version.search(["red", "boat sea", "zebra"], **how).results
    assert sorted(red.items) == ["red boat", "red car"]
    assert sorted(boat.items) == ["blue boat", "green sea", "old sea", "red boat"]
    assert (other.items, other.is_known) == ([], False)
    for result in (red, boat, other):
        assert (result.num_kept, result.is_short, result.is_truncated) == (len(result.items), False, False)
        assert result.certificate.is_exact
        assert all(score > 0 for score in result.scores)


@pytest.mark.parametrize("cutoff", [{"top_k": 5}, {"score": 9.0}])
def test_a_request_asks_for_others(version: LocalVersion, cutoff: dict[str, float]) -> None:
    red, other = version.search(["red", "zebra"], cutoff={**cutoff, "min_items": 3}).results
    assert red.items[2:] == ["blue boat"]
    assert red.scores[2] == 0
    assert other.items == TEXTS[:3]
