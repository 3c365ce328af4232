"""Cut-offs in requests: two shards search by a threshold, and answer as one list that is cut at its end."""

from typing import Any

import numpy as np
import pytest

from rails_ray.cutoffs.policies import cut
from rails_ray.families.version import Version
from rails_ray.schema.requests import CutoffInput
from rails_ray.search.methods.brute_force import BruteForce
from rails_ray.serving.cutoffs import Cutoffs
from rails_ray.storage.filesystem import Storage
from support.served_version import ASKED, TEXTS, Served

pytestmark = pytest.mark.cluster

CUTOFFS = {
    "mass": {"mass": 0.99},
    "mass on the sphere": {"mass": 0.5, "background": "sphere"},
    "mass fitted": {"mass": 0.5, "background": "fitted"},
    "mass held out": {"mass": 0.5, "background": "held_out"},
    "coverage": {"coverage": 0.8},
    "nucleus": {"nucleus": 0.5},
    "probability": {"probability": 0.01},
    "score": {"score": 0.1},
    "score that none reaches": {"score": 1.0},
    "at least": {"score": 1.0, "min_items": 4},
    "at most": {"score": -1, "max_items": 7},
    "top_k": {"top_k": 5},
}


@pytest.mark.parametrize("method", ["brute_force", "two_pass", "combined"])
@pytest.mark.parametrize("cutoff", CUTOFFS.values(), ids=CUTOFFS)
def test_each_cut_off_keeps_what_its_policy_keeps_of_all_scores(
    served_version: Served, cutoff: dict[str, Any], method: str
) -> None:
    """Two shards that search by a threshold, against one list of all items that is cut at its end."""
    k = 60 if "top_k" not in cutoff else None
    answer = served_version.search(queries=ASKED, k=k, cutoff=cutoff, method=method).json()
    assert answer["cutoff"] == cutoff
    assert answer["is_exact"]
    query = served_version.model.encode_queries(served_version.model.query_features(TEXTS))
    scores = BruteForce(served_version.model.similarity, served_version.items).scores(query)
    store = Storage(str(served_version.root))
    offline = Cutoffs.read(Version(store, served_version.manifest))
    asked = CutoffInput(**cutoff)
    logit = offline.softmax_logit  # at the temperature that calibration fitted
    assert logit is not None
    logits = logit(scores, query.temperature).double()
    policy = offline.policy(asked, offline.limit(asked, k), logits.logsumexp(1).numpy(force=True))
    ordered = scores.sort(dim=1, descending=True)
    done = cut(ordered.values.numpy(), query.temperature.numpy(force=True), policy, np.zeros(len(TEXTS), dtype=bool))
    for number, result in enumerate(answer["results"]):
        num_kept = int(done.num_kept[number])
        assert result["num_kept"] == len(result["items"]) == num_kept
        rows = ordered.indices[number, :num_kept].tolist()
        assert result["items"] == [served_version.item_ids[row] for row in rows]
        assert result["is_truncated"] == bool(done.is_truncated[number])
        if result["threshold"] is not None:
            assert result["threshold"] == pytest.approx(float(done.threshold[number]), abs=1e-5)


def test_a_threshold_spares_the_shards_work(served_version: Served) -> None:
    """What cannot reach it is not scored: a high one leaves less to do than the ten best."""
    high = served_version.search(queries=ASKED, k=10, cutoff={"score": 0.99}).json()["results"]
    best = served_version.search(queries=ASKED, k=10, cutoff={"top_k": 10}).json()["results"]
    assert sum(result["num_scored"] for result in high) < sum(result["num_scored"] for result in best)
    assert all(result["num_scored"] == result["num_searched"] for result in best)


def test_excluded_items_count_neither_in_a_nucleus_nor_in_a_list(served_version: Served) -> None:
    best = served_version.offline(["red"], 60)[0]
    queries = [{"text": "red", "exclude": best[:30]}]
    (result,) = served_version.search(queries=queries, k=60, cutoff={"nucleus": 0.999}).json()["results"]
    assert result["items"]
    assert result["items"] == best[30 : 30 + result["num_kept"]]


def test_a_coverage_beyond_the_calibration_says_what_it_needs(served_version: Served) -> None:
    response = served_version.search(queries=[{"text": "red"}], cutoff={"coverage": 0.9999})
    assert response.status_code == 422
    assert response.json()["error"].startswith("coverage 0.9999 needs at least 9999 calibration queries, got ")
