"""What a filled relevance matrix is for: items that join a version, and the commands from data to an answer."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from rails_ray import on_ray
from rails_ray.cli.main import EXIT_BAD_ARGUMENT, main
from rails_ray.families.config import DataConfig, from_json
from rails_ray.families.training_family import training_family
from rails_ray.families.version import Version
from rails_ray.reranking.rankers import candidates_of
from rails_ray.serving import local
from rails_ray.storage import runs
from rails_ray.storage.filesystem import Storage
from support.data_folders import write_text_data
from support.published_rbe import write_rbe_run
from support.ranked import BY_PAIRS, NUM_SUPPORTS, by_pairs, small_rbe_config, write_scored_data, write_word_features

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("ray_cluster")]


def read(folder: Path, table: str) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = pq.read_table(folder / f"{table}.parquet").to_pydict()
    return found


def test_items_join_without_training(tmp_path: Path) -> None:
    """`encode --folder` scores new items against the support queries, and takes the others from the matrix."""
    data = write_scored_data(tmp_path / "data", num_items=40)
    write_rbe_run(tmp_path, data, config=small_rbe_config(ridge=0.0))
    more = write_text_data(tmp_path / "more", num_items=60)
    on_ray.encode(str(tmp_path), "rbe", version="old", num_shards=2)
    on_ray.encode(
        str(tmp_path), "rbe", version="new", num_shards=2, data=DataConfig(folder=str(more)), allow_code=["support"]
    )
    store = Storage(str(tmp_path))
    old, new = (Version.encoded(store, name).items() for name in ("old", "new"))
    assert len(new.item_ids) == 60
    vectors = new.state.components[:, 0]
    # Products of 40 and of 60 lines may be rounded differently.
    assert torch.allclose(vectors[:40], old.state.components[:, 0], rtol=0, atol=1e-6)
    # by the equations: t of a new item is AnnCUR's, its bias is the mean one
    found = runs.read(store, "rbe")
    config = from_json(found.config)
    model = training_family(config).trained_model(runs.weights(store, found))
    texts = read(more, "items")["text"]
    new_items = candidates_of(range(40, 60), texts[40:])
    relevance = np.array([by_pairs({"text": query}, new_items) for query in model.support_queries]).T
    expected = relevance @ np.linalg.pinv(model.support_relevance.double().numpy())
    assert vectors[40:, :NUM_SUPPORTS].numpy() == pytest.approx(expected, abs=1e-4)
    assert vectors[40:, -1].numpy() == pytest.approx(float(model.embedding.bias.detach().mean()), abs=1e-6)
    on_ray.publish(str(tmp_path), "new")
    answer = local.open(str(tmp_path), ranker=by_pairs).search([texts[50]], k=5, budget={"calls": 30})
    assert answer.results[0].items[0] == "item-50"


@pytest.mark.long
def test_the_commands_go_from_texts_to_an_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, storage = write_text_data(tmp_path / "data"), ["--storage", str(tmp_path / "s")]
    ranker = ["--ranker.path", BY_PAIRS.path]
    assert main(["relevance", "--name", "m", "--folder", str(data), "--timeout-s", "60", *ranker, *storage]) == 0
    told = capsys.readouterr().out
    folder = str(tmp_path / "s" / "relevance" / "m")
    assert "no hole" in told
    assert f"next: rails-ray train text-rbe --data.folder {folder} --ranker.path {BY_PAIRS.path}" in told.replace(
        "\n", ""
    )
    sizes = ["--num-supports", "6", "--num-best", "5", "--training.num-steps", "20", "--embedding.width", "9"]
    assert main(["train", "text-rbe", "--run", "r", "--data.folder", folder, *ranker, *sizes, *storage]) == 0
    assert main(["encode", "--run", "r", "--version", "v", *storage, "--codes", "4x16", "--keep-vectors"]) == 0
    assert main(["publish", "--version", "v", *storage]) == 0
    assert main(["evaluate", "--version", "v", *storage]) == 0
    capsys.readouterr()
    query, allowed = ["query", "red hat", "--local", *storage, "--calls", "40"], ["--allow-code", "support"]
    assert main(query) == EXIT_BAD_ARGUMENT
    assert "version v names the ranker 'support.ranked:by_pairs', code that this" in capsys.readouterr().err
    assert main([*query, *allowed]) == 0
    assert "calls, the heavy ranker's order" in capsys.readouterr().out
    assert main(["train", "text-dot", "--data.folder", folder, "--training.num-steps", "5", *storage]) == 0
    cut = ["--calls", "40", "--cutoff", "score", ".5"]
    assert main(["query", "red hat", "--local", *storage, *allowed, *cut]) == 2
    assert "--cutoff must be left out beside --calls, got score" in capsys.readouterr().err
    assert main(["query", "red hat", "--local", *storage, *allowed, "--deadline-ms", "40"]) == 2
    assert "--deadline-ms and --rounds must be given with --calls, got no --calls" in capsys.readouterr().err
    assert json.loads((tmp_path / "s" / "relevance" / "m" / "matrix.json").read_text())["num_holes"] == 0


@pytest.mark.long
def test_the_commands_go_from_features_to_a_matrix_of_boosted_trees(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, storage = write_text_data(tmp_path / "data"), ["--storage", str(tmp_path / "s")]
    write_word_features(data)
    asked = ["train-ranker", "--kind", "boosted", "--folder", str(data), "--to", str(tmp_path / "trees")]
    assert main([*asked, "--trees.num-rounds", "80", "--trees.num-leaves", "15"]) == 0
    ranker = ["--ranker.path", "rails_ray.reranking.rankers.boosted:BoostedRanker"]
    ranker += ["--ranker.folder", str(tmp_path / "trees")]
    following = f"next: rails-ray relevance --name NAME --folder {data} {' '.join(ranker)}"
    assert following in capsys.readouterr().out.replace("\n", "")
    assert main(["relevance", "--name", "m", "--folder", str(data), *ranker, *storage]) == 0
    assert "no hole" in capsys.readouterr().out
    found, given = (read(folder, "relevance") for folder in (tmp_path / "s" / "relevance" / "m", data))
    best = dict(zip(reversed(found["query_id"]), reversed(found["item_id"]), strict=True))
    answers = set(zip(given["query_id"], given["item_id"], strict=True))
    assert np.mean([pair in answers for pair in best.items()]) > 0.4  # by chance: about .04
