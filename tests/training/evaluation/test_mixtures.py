import math

import pytest
import torch

from rails_ray.families.dual_encoder.model import DualEncoder
from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.schema.search_params import SearchParams
from rails_ray.search.searcher import ByComponents
from rails_ray.search.spec import SearchSpec
from rails_ray.training.evaluation import mixtures
from rails_ray.training.evaluation.mixtures import measures
from support.examples import COLOURED, THINGS, small_config


def model_of(similarity: str = "mixture") -> DualEncoder:
    return DualEncoderTraining.of(small_config(similarity)).model().eval()


def test_entropies_are_those_of_the_gates_of_pairs() -> None:
    model = model_of()
    found = measures(model, model.item_features(THINGS), COLOURED)
    query = model.encode_queries(model.query_features(COLOURED.inputs))
    gates = model.score(query, model.encode_items(model.item_features(THINGS))).gates
    own = [gates[line, int(rows[0])].tolist() for line, rows in enumerate(COLOURED.relevant)]
    mean = [sum(column) / len(own) for column in zip(*own, strict=True)]
    assert found["gate_entropy"] == pytest.approx(-sum(p * math.log(p) for p in mean), abs=1e-5)
    each = [-sum(p * math.log(p) for p in line) for line in own]
    assert found["gate_entropy_of_pairs"] == pytest.approx(sum(each) / len(each), abs=1e-5)


@torch.no_grad()
def test_recall_and_proofs_are_those_of_the_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixtures, "K", 2)
    params = SearchParams(num_candidates=2, num_per_embedding=1)
    monkeypatch.setattr(mixtures, "WIDTHS", params)
    model = model_of()
    found = measures(model, model.item_features(THINGS), COLOURED)
    searcher = ByComponents(model.similarity, model.encode_items(model.item_features(THINGS)))
    query, spec = model.encode_queries(model.query_features(COLOURED.inputs)), SearchSpec(2)
    exact, average, per = (
        searcher.search(query, spec, method, params) for method in ("brute_force", "average", "per_embedding")
    )
    hits = [len(set(a) & set(b)) for a, b in zip(exact.item_rows.tolist(), average.item_rows.tolist(), strict=True)]
    assert found["recall_of_average"] == pytest.approx(sum(hits) / 8)
    assert found["certified_fraction"] == pytest.approx(sum(gap == 0 for gap in per.gap(spec).tolist()) / 4)


def test_nothing_is_measured_without_gates_or_queries() -> None:
    model = model_of("dot product")
    assert measures(model, model.item_features(THINGS), COLOURED) == {}
    model = model_of()
    assert measures(model, model.item_features(THINGS), COLOURED.head(0)) == {}
