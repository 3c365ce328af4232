"""Rankers that are trained: what they learn, that they come back as they were, and what they refuse."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rails_ray.data.dataset import DataSet, Texts
from rails_ray.data.forms import FORMS
from rails_ray.data.sources import Sources
from rails_ray.errors import UnavailableError
from rails_ray.modules.schedule import TrainingConfig
from rails_ray.reranking.rankers import Candidate, candidates_of
from rails_ray.reranking.rankers.boosted import PairFeatures, TreesConfig, pairs
from rails_ray.reranking.rankers.calling import ranker_of, scores_of
from rails_ray.reranking.rankers.cross_encoder import (
    CrossEncoder,
    CrossEncoderConfig,
    CrossEncoderRanker,
    PairReader,
    load,
    save,
)
from rails_ray.reranking.rankers.transformers_ranker import TransformersRanker
from rails_ray.schema.ranker import RankerConfig
from rails_ray.training.rankers import RankerPairSampler, train_boosted, train_cross_encoder
from support.data_folders import write_text_data

LENGTHS = {"query_length": 6, "item_length": 8}
SMALL = CrossEncoderConfig(width=16, num_blocks=1, num_heads=2, hidden=32, vocabulary_size=300, **LENGTHS)
PATHS = "rails_ray.reranking.rankers"


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    return FORMS["text"].read(Sources(str(write_text_data(tmp_path_factory.mktemp("texts")))))


@pytest.fixture(scope="module")
def cross_encoder(texts: DataSet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranker") / "own"
    training = TrainingConfig(num_steps=150, batch_size=16, learning_rate=3e-3)
    train_cross_encoder(texts, folder, SMALL, training)
    return folder


def test_a_cross_encoder_learns_which_items_answer(texts: DataSet, cross_encoder: Path) -> None:
    ranker = ranker_of(RankerConfig(path=f"{PATHS}.cross_encoder:CrossEncoderRanker", folder=str(cross_encoder)))
    items = candidates_of(list(texts.item_ids), list(texts.item_inputs))
    queries, num_found = texts.queries["test"], 0
    for number, text in enumerate(queries.inputs):
        best = int(scores_of(ranker, {"text": text}, items).argmax())
        num_found += best in queries.relevant[number]
    assert num_found / len(queries) > 0.6  # by chance: about .1


def test_a_score_does_not_depend_on_its_neighbours(texts: DataSet, cross_encoder: Path) -> None:
    ranker = CrossEncoderRanker(str(cross_encoder), "cpu")
    items = [*candidates_of(list(texts.item_ids), list(texts.item_inputs)), Candidate("long", {"text": "red " * 50})]
    together = scores_of(ranker, {"text": "red hat"}, items)
    alone = [scores_of(ranker, {"text": "red hat"}, [item])[0] for item in items]
    assert together == pytest.approx(alone, abs=1e-5)


def test_a_cross_encoder_is_the_same_after_storage(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, reader = CrossEncoder(SMALL).eval(), PairReader.of(["red car", "blue hat"], SMALL)
    save(tmp_path / "r", model, reader)
    query, items = reader.queries(["red"]), reader.items(["red car", "blue hat", ""])
    with torch.no_grad():
        expected = model(query.expand(3, -1), items).tolist()
    found = CrossEncoderRanker(str(tmp_path / "r"), "cpu")(
        {"text": "red"}, candidates_of(range(3), ["red car", "blue hat", ""])
    )
    assert found == pytest.approx(expected, abs=1e-5)


def test_a_cross_encoder_from_before_words_had_a_name_reads_as_then(tmp_path: Path) -> None:
    former = replace(SMALL, words="alphanumeric")
    reader = PairReader.of(["red car", "हिन्दी İ"], former)
    save(tmp_path / "r", CrossEncoder(former), reader)
    stored = json.loads((tmp_path / "r" / "config.json").read_text())
    assert stored.pop("words") == "alphanumeric"
    (tmp_path / "r" / "config.json").write_text(json.dumps(stored))
    model, back = load(tmp_path / "r")
    assert model.config == former
    assert torch.equal(back.queries(["İs"]), reader.queries(["İs"]))
    assert not torch.equal(back.queries(["İs"]), PairReader(reader.json, SMALL).queries(["İs"]))


def test_negatives_do_not_answer(texts: DataSet) -> None:
    queries = texts.queries["train"]
    reader = PairReader.of([*texts.item_inputs, *queries.inputs], SMALL)
    tokens = reader.items(list(texts.item_inputs))
    sampler = RankerPairSampler(reader.queries(list(queries.inputs)), tokens, queries.relevant, 32, 5, 0)
    of_tokens = {tuple(line.tolist()): row for row, line in enumerate(tokens)}
    of_queries = {tuple(line.tolist()): row for row, line in enumerate(sampler.queries)}
    for step in range(3):
        batch = sampler.batch(step)
        assert torch.equal(batch.items, sampler.batch(step).items)
        for query, items in zip(batch.queries, batch.items, strict=True):
            wide = torch.nn.functional.pad(query, (0, sampler.queries.shape[1] - len(query)))
            row = of_queries[tuple(wide.tolist())]
            wides = torch.nn.functional.pad(items, (0, tokens.shape[1] - items.shape[1]))
            found = [of_tokens[tuple(line.tolist())] for line in wides]
            relevant = set(queries.relevant[row].tolist())
            assert found[0] in relevant
            assert not relevant & set(found[1:])


def test_boosted_trees_learn_who_likes_what(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    users, films = draws.standard_normal((60, 4)).astype(np.float32), draws.standard_normal((80, 5)).astype(np.float32)
    likes = users[:, :3] @ films[:, :3].T  # [60, 80]
    positives = np.argwhere(likes > 2)
    keys = np.array([f"user {row}" for row in range(60)]), np.array([str(row) for row in range(80)])
    features = PairFeatures(keys[0], users, keys[1], films, 3)
    train_boosted(features, positives, tmp_path, TreesConfig(num_rounds=60, num_leaves=15))
    ranker = ranker_of(RankerConfig(path=f"{PATHS}.boosted:BoostedRanker", folder=str(tmp_path)))
    items = [Candidate(row, {"text": "a film"}) for row in range(80)]
    scores = np.stack([scores_of(ranker, {"text": f"user {row}"}, items) for row in range(60)])
    best = np.take_along_axis(likes, scores.argsort(axis=1)[:, -5:], axis=1)
    assert best.mean() > 1.5  # of all pairs: about 0
    with pytest.raises(UnavailableError, match="a query must have features, got 'user 99', which has none"):
        scores_of(ranker, {"text": "user 99"}, items)
    with pytest.raises(UnavailableError, match="an item must have features, got 123, which has none"):
        scores_of(ranker, {"text": "user 1"}, [Candidate(123, {})])


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"num_rounds": 0}, "num_rounds must be at least 1, got 0"),
        ({"num_leaves": 1}, "num_leaves must be at least 2, got 1"),
        ({"learning_rate": 0.0}, r"learning_rate must be above 0, got 0\.0"),
    ],
)
def test_trees_that_cannot_be(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        TreesConfig(**fields)


def test_negatives_of_trees_are_not_relevant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import lightgbm

    seen = list[Any]()

    def watched(read: Any, is_relevant: Any) -> Any:
        seen.append((read, is_relevant))
        return made(read, is_relevant)

    made = lightgbm.Dataset
    monkeypatch.setattr(lightgbm, "Dataset", watched)
    numbers = np.arange(30, dtype=np.float32)[:, None]
    positives = np.array([[query, item] for query in range(30) for item in range(0, 30, 2)])
    train_boosted(PairFeatures(numbers[:, 0], numbers, numbers[:, 0], numbers, 0), positives, tmp_path, TreesConfig())
    [(read, is_relevant)] = seen
    assert (read[:, 1] % 2 == 1 - is_relevant).all()
    assert is_relevant.sum() == len(positives)


def test_what_trees_read_of_a_pair() -> None:
    read = pairs(np.array([2.0, 3.0, 4.0]), np.array([[5.0, 6.0], [7.0, 8.0]]), 2)
    assert read.tolist() == [[2, 3, 4, 5, 6, 10, 18], [2, 3, 4, 7, 8, 14, 24]]


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("boosted:BoostedRanker", "must hold the features of a boosted ranker, features.npz, got: "),
        ("cross_encoder:CrossEncoderRanker", "must hold a cross-encoder, got: "),
        ("transformers_ranker:TransformersRanker", "must hold a model of transformers"),
    ],
)
@pytest.mark.parametrize("is_there", [False, True])
def test_folders_without_a_ranker(tmp_path: Path, path: str, told: str, is_there: bool) -> None:
    folder = tmp_path if is_there else tmp_path / "nothing"
    with pytest.raises(ValueError, match=told):
        ranker_of(RankerConfig(path=f"{PATHS}.{path}", folder=str(folder)))


@pytest.fixture(scope="module")
def of_transformers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cross-encoder that transformers saved."""
    transformers = pytest.importorskip("transformers")
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "red", "blue", "hat", "car"]
    folder = tmp_path_factory.mktemp("transformers")
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=len(vocabulary), num_labels=1, max_position_embeddings=20, **sizes)
    transformers.BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder / "model")
    transformers.BertForSequenceClassification(config).save_pretrained(folder / "model")
    return folder / "model"


def test_a_cross_encoder_of_transformers(of_transformers: Path) -> None:
    ranker = TransformersRanker(str(of_transformers), "cpu")
    items = candidates_of(range(3), ["red car", "blue hat", "red " * 30])
    found = scores_of(ranker, {"text": "red hat"}, items)
    read = ranker.tokenizer("red hat", "blue hat", return_tensors="pt")
    with torch.no_grad():
        assert found[1] == pytest.approx(float(ranker.model(**read).logits[0, 0]), abs=1e-5)
    assert found.tolist() == pytest.approx(
        [scores_of(ranker, {"text": "red hat"}, [item])[0] for item in items], abs=1e-5
    )


def test_threads_take_turns_at_the_tokenizer(of_transformers: Path) -> None:
    """Two of them at once raise `Already borrowed`, now and then."""
    ranker = TransformersRanker(str(of_transformers), "cpu")
    tokenizer, are_alone = ranker.tokenizer, list[bool]()

    def watched(*asked: Any, **how: Any) -> Any:
        are_alone.append(ranker.reading.locked())
        return tokenizer(*asked, **how)

    ranker.tokenizer = watched
    items = candidates_of(range(2), ["red car", "blue hat"])
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda text: ranker({"text": text}, items), ["red", "blue", "red hat", "car"]))
    assert are_alone == [True] * 4
    assert together == [ranker({"text": text}, items) for text in ["red", "blue", "red hat", "car"]]


def test_only_texts_train_a_cross_encoder(texts: DataSet, tmp_path: Path) -> None:
    numbers = DataSet(texts.item_ids, np.arange(len(texts.item_ids)), texts.queries)
    with pytest.raises(ValueError, match="a cross-encoder needs queries and items that are texts"):
        train_cross_encoder(numbers, tmp_path, SMALL, TrainingConfig(num_steps=1))
    assert isinstance(texts.item_inputs, Texts)
