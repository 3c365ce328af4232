"""What a shard says of versions that lack what a search reads: in this process, and over HTTP."""

from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import torch

from examples import part_of, random_states, small_config
from rails_ray import build
from rails_ray.config import to_json
from rails_ray.errors import DamagedError
from rails_ray.on_ray.serving.answers import coverage_of
from rails_ray.on_ray.serving.app import served
from rails_ray.on_ray.serving.plan import ServeArgs
from rails_ray.on_ray.serving.shard import Asked, Shard
from rails_ray.storage import manifest, parts, versions
from rails_ray.storage.filesystem import Storage
from rails_ray.training import state
from s3_server import free_port

CONFIG = small_config()
QUERY, ITEMS = random_states(2, 30, p_q=2, p_x=2, width=6)


def publish_without(folder: Path, column: str, p_x: int = 2) -> None:
    """A version whose part is written without a column."""
    store = Storage(str(folder))
    planned = parts.plan([30], part_items=30)
    items = ITEMS if p_x == 2 else random_states(1, 30, p_q=2, p_x=p_x, width=5)[1]
    items = items if column not in ("average", "gate") else replace(items, **{column: None})
    parts.write_part(store, "v1", planned[0], part_of(items))
    files = {manifest.CONFIG: to_json(CONFIG), manifest.WEIGHTS: state.to_bytes(build.model(CONFIG))}
    encoded = parts.finish(store, "v1", planned, run="r", query={"text": "string"}, files=files, cutoff_mass=None)
    versions.publish(store, encoded, "2026-01-01T00:00:00Z")


def shard_without(folder: Path, column: str, p_x: int = 2) -> Shard:
    publish_without(folder, column, p_x)
    return Shard.func_or_class(str(folder), "v1", 0)


def asked(shard: Shard, method: str) -> list[list[str]]:
    return shard._search(QUERY, Asked(5, method, 10, 10), [[], []]).item_ids


def test_without_the_average_other_methods_answer_as_ever(tmp_path: Path) -> None:
    shard = shard_without(tmp_path, "average")
    assert shard.state.average is None
    assert torch.equal(shard.state.components, ITEMS.components)
    assert asked(shard, "two_pass") == asked(shard, "brute_force")
    for method in ("average", "combined"):
        with pytest.raises(ValueError, match="need the column 'average' of the index, got one without it") as refused:
            asked(shard, method)
        with pytest.raises(ValueError, match="encode a new version, or take another method"):  # which HTTP tells as 422
            coverage_of([refused.value], [30], min_coverage=1)


@pytest.mark.cluster
@pytest.mark.usefixtures("ray_cluster")
def test_over_http_a_method_that_needs_the_average_is_422_and_the_others_answer(tmp_path: Path) -> None:
    publish_without(tmp_path, "average")
    body = {"queries": [{"text": "red"}], "k": 5, "cutoff": {"top_k": 5}}
    with served(ServeArgs(storage=str(tmp_path), allow_anonymous=True), port=free_port()) as url:
        answers = {
            method: httpx.post(f"{url}/v1/search", json=body | {"method": method}, timeout=30)
            for method in build.METHODS
        }
    for method in ("average", "combined"):
        refused = answers.pop(method)
        assert (refused.status_code, refused.json()) == (
            422,
            {
                "error": "methods average and combined need the column 'average' of the index, got one without it: "
                "encode a new version, or take another method"
            },
        )
    assert {method: answer.status_code for method, answer in answers.items()} == {
        "brute_force": 200,
        "two_pass": 200,
        "per_embedding": 200,
    }
    exact, two_pass = (answers[method].json()["results"][0]["items"] for method in ("brute_force", "two_pass"))
    assert two_pass == exact


@pytest.mark.parametrize("method", build.METHODS)
def test_without_gates_a_mixture_cannot_be_searched(tmp_path: Path, method: str) -> None:
    with pytest.raises(ValueError, match="must have the column 'gate' of its items, got an index without it"):
        asked(shard_without(tmp_path, "gate"), method)


def test_components_that_are_not_those_of_the_model(tmp_path: Path) -> None:
    with pytest.raises(DamagedError, match="must have 2 components of one width, got 15 numbers: encode a new version"):
        shard_without(tmp_path, "none", p_x=3)
