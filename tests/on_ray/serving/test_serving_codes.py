"""Codes over HTTP: the server answers what the same version answers in this process."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rails_ray.families.vector_items.storing import PqItems
from rails_ray.on_ray.serving.plan import ServeArgs
from rails_ray.serving.local import LocalVersion
from support.one_serve import served
from support.served_version import ASKED, TEXTS, AtUrl
from support.untrained_runs import published, write_runs

pytestmark = [pytest.mark.cluster, pytest.mark.long]

BODIES: tuple[dict[str, Any], ...] = (
    {"method": "brute_force"},
    {"method": "lookup", "num_candidates": 20},
    {"method": "ivf_lookup", "num_candidates": 20, "nprobe": 2},
    {"method": "combined", "num_candidates": 20, "num_per_embedding": 20},
    {"method": "lookup", "num_candidates": 60, "cutoff": {"score": 0.1}},
)


@pytest.fixture(scope="module", params=[pytest.param(16, marks=pytest.mark.long), 20])
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, ray_cluster: None
) -> Iterator[tuple[AtUrl, LocalVersion]]:
    """Codes of half a byte, searched by FAISS's fast scan, and of a byte; beside vectors, and in their place."""
    root: Path = tmp_path_factory.mktemp("codes")
    write_runs(root)
    items = PqItems(num_subspaces=3, num_codewords=request.param, has_vectors=request.param == 16, nlist=3)
    version = published(root, "mixture", "codes", items=items)
    with served(ServeArgs(storage=str(root), timeout_s=30, allow_anonymous=True)) as url:
        yield AtUrl(url), version


@pytest.mark.parametrize("body", BODIES, ids=lambda body: " ".join([body["method"], *body.get("cutoff", {})]))
def test_answers_are_those_of_the_version(pair: tuple[AtUrl, LocalVersion], body: dict[str, Any]) -> None:
    server, version = pair
    body = {"cutoff": {"top_k": 7}, **body}
    expected = version.search(TEXTS, 7, **body).results
    queries = [{**query, "exclude": []} for query in ASKED]
    found = server.search(queries=queries, k=7, **body)
    assert found.status_code == 200, found.text
    for own, local in zip(found.json()["results"], expected, strict=True):
        assert own["items"] == local.items
        assert own["scores"] == pytest.approx(local.scores, abs=1e-6)
        assert own["certificate"]["is_exact"] == local.certificate.is_exact
    best = expected[0].items[:2]
    without = server.search(queries=[{**ASKED[0], "exclude": best}], k=7, **body).json()["results"][0]["items"]
    assert not {*best} & {*without}


def test_a_method_of_other_items(pair: tuple[AtUrl, LocalVersion]) -> None:
    found = pair[0].search(queries=ASKED, k=3, method="inverted")
    assert found.status_code == 422
    assert "method must be one of brute_force, two_pass, per_embedding, average, combined" in found.json()["error"]
