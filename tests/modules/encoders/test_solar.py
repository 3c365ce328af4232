from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import oracles.encoders
import oracles.vectors
from rails_ray.data.queries import SparseRows
from rails_ray.families.solar.model import Solar
from rails_ray.modules import weight_files
from rails_ray.modules.encoders.character_ngrams import hash_texts
from rails_ray.modules.encoders.solar import NUM_TOKENS, Chunk, ChunksConfig, chunk_seed
from rails_ray.modules.similarities.look_up import LookUpConfig
from rails_ray.modules.similarities.states import Codes

TEXT = ChunksConfig(num_chunks=3, num_buckets=5, hidden=4, num_inputs=50)
FEATURES = replace(TEXT, input="features", width=6)
VECTOR = replace(TEXT, input="vector", width=2)
TEXTS = ["red car", "blue hat", "a red hat and a blue car"]
BAGS = [[(0, 1.0), (3, -2.0)], [(5, 0.25)], [(3, 1.0), (1, 3.0), (0, 0.5)]]
VECTORS = np.array([[1.0, -2.0], [0.0, 0.0], [0.3, 40.0]], dtype=np.float32)


def sparse(bags: list[list[tuple[int, float]]], width: int = 6) -> SparseRows:
    lengths = [len(bag) for bag in bags]
    return SparseRows(
        np.array([sum(lengths[:number]) for number in range(len(bags) + 1)]),
        np.array([token for bag in bags for token, _ in bag], dtype=np.int64),
        np.array([weight for bag in bags for _, weight in bag], dtype=np.float32),
        width,
    )


INPUTS = [(TEXT, TEXTS), (FEATURES, sparse(BAGS)), (VECTOR, VECTORS)]
KINDS = ["text", "features", "vector"]
EMPTY = [(TEXT, []), (FEATURES, sparse([])), (VECTOR, VECTORS[:0])]


def chunk_of(config: ChunksConfig, inputs: Any, seed: int = 3) -> Chunk:
    """One that has learnt its tokens and has biases of its own."""
    torch.manual_seed(seed)
    chunk = Chunk(config, seed)
    torch.nn.init.normal_(chunk.hidden_bias)
    torch.nn.init.normal_(chunk.output.bias)
    chunk.learn(inputs)
    return chunk


def solar_of(config: ChunksConfig, inputs: Any, numbers: list[int], values: str = "probability") -> Solar:
    chunks = {number: chunk_of(config, inputs, seed=number) for number in numbers}
    return Solar(config, LookUpConfig(values=values), chunks).eval()


def weights_of(chunk: Chunk) -> dict[str, Any]:
    return {name: parameter.tolist() for name, parameter in chunk.named_parameters()}


def bags_of(config: ChunksConfig, inputs: Any, seed: int) -> list[list[tuple[int, float]]]:
    """The places and weights of queries, of which all tokens are known."""
    if config.input == "features":
        return BAGS
    hashed = [hash_texts([text], config.ngram_sizes, NUM_TOKENS).tokens.tolist() for text in inputs]
    return [
        [(oracles.encoders.hashed_place(token, seed, config.num_inputs), 1.0) for token in tokens] for tokens in hashed
    ]


@pytest.mark.parametrize(("config", "inputs"), [*INPUTS, *EMPTY], ids=[*KINDS, *(f"no {kind}" for kind in KINDS)])
def test_what_is_learnt_from_has_the_features_of_any_query(config: ChunksConfig, inputs: Any) -> None:
    chunk = Chunk(config, 0)
    learnt, features = chunk.learn(inputs), chunk.features(inputs)
    assert vars(learnt).keys() == vars(features).keys()
    assert all(torch.equal(value, getattr(features, name)) for name, value in vars(learnt).items())


@pytest.mark.parametrize("ngram_sizes", [(), (3, 4)])
@pytest.mark.parametrize(("config", "inputs"), INPUTS[:2], ids=KINDS[:2])
def test_logits_of_bags_equal_the_equation(config: ChunksConfig, inputs: Any, ngram_sizes: tuple[int, ...]) -> None:
    config = replace(config, ngram_sizes=ngram_sizes)
    chunk = chunk_of(config, inputs)
    expected = [oracles.encoders.chunk_logits(bag, weights_of(chunk)) for bag in bags_of(config, inputs, chunk.seed)]
    assert torch.allclose(chunk(chunk.features(inputs)), torch.tensor(expected), atol=1e-5)


def test_logits_of_vectors_equal_the_equation() -> None:
    chunk = chunk_of(VECTOR, VECTORS)
    of = weights_of(chunk)
    for vector, line in zip(VECTORS.tolist(), chunk(chunk.features(VECTORS)).tolist(), strict=True):
        summed = oracles.vectors.linear(of["input.weight"], of["hidden_bias"], vector)
        hidden = [max(value, 0.0) for value in summed]
        assert line == pytest.approx(oracles.vectors.linear(of["output.weight"], of["output.bias"], hidden), abs=1e-4)


@pytest.mark.parametrize(("config", "inputs"), INPUTS, ids=KINDS)
def test_some_buckets_have_the_logits_that_they_have_among_all(config: ChunksConfig, inputs: Any) -> None:
    chunk = chunk_of(config, inputs)
    features = chunk.features(inputs)
    some = torch.tensor([4, 0, 2])
    assert torch.allclose(chunk(features, some), chunk(features)[:, some], atol=1e-6)
    assert chunk(features, some[:0]).shape == (3, 0)


@pytest.mark.parametrize(("config", "inputs"), INPUTS, ids=KINDS)
def test_a_query_has_the_same_logits_in_any_company(config: ChunksConfig, inputs: Any) -> None:
    chunk = chunk_of(config, inputs)
    features = chunk.features(inputs)
    together = chunk(features)
    assert torch.allclose(chunk(features.take(torch.tensor([2, 0, 2]))), together[[2, 0, 2]], atol=1e-6)
    assert torch.allclose(
        chunk(chunk.features(inputs[:1] if config.input != "features" else sparse(BAGS[:1]))), together[:1], atol=1e-6
    )


@pytest.mark.parametrize(("config", "inputs"), EMPTY, ids=KINDS)
def test_no_query_has_no_logits(config: ChunksConfig, inputs: Any) -> None:
    of_queries = {"text": TEXTS, "features": sparse(BAGS), "vector": VECTORS}[config.input]
    chunk = chunk_of(config, of_queries)
    assert chunk(chunk.features(inputs)).shape == (0, 5)
    solar = solar_of(config, of_queries, [0, 2])
    assert solar.encode_queries(solar.query_features(inputs)).tables.shape == (0, 3, 5)
    assert solar.are_known(inputs) == []


def test_words_that_training_did_not_see_change_nothing() -> None:
    chunk = chunk_of(TEXT, TEXTS)
    plain, mixed = (chunk(chunk.features(texts)) for texts in (["red hat"], ["plum red stone hat"]))
    assert torch.equal(plain, mixed)
    chunk = chunk_of(FEATURES, sparse(BAGS))  # 2 and 4 are in no query; 9 is beyond the width
    strange = sparse([[(2, 7.0), (0, 1.0), (9, 1.0), (3, -2.0)]], width=10)
    assert torch.equal(chunk(chunk.features(strange)), chunk(chunk.features(sparse(BAGS[:1]))))


@pytest.mark.parametrize(
    ("config", "inputs", "strange", "has_known"),
    [
        (TEXT, TEXTS, ["red", "plum", "", "stone hat", "..."], [True, False, False, True, False]),
        (
            FEATURES,
            sparse(BAGS),
            sparse([[(2, 1.0)], [(1, 1.0), (2, 1.0)], [], [(9, 1.0)]], width=10),
            [False, True, False, False],
        ),
        (VECTOR, VECTORS, VECTORS[1:], VECTORS[1:].any(axis=1).tolist()),
    ],
    ids=KINDS,
)
def test_a_query_of_which_nothing_is_known_has_the_answer_of_the_biases(
    config: ChunksConfig, inputs: Any, strange: Any, has_known: list[bool]
) -> None:
    solar = solar_of(config, inputs, [1])
    assert solar.are_known(strange) == has_known
    assert not solar.is_blank(strange)
    of = weights_of(solar.first)
    relu = [max(value, 0.0) for value in of["hidden_bias"]]
    of_biases = torch.tensor(oracles.vectors.linear(of["output.weight"], of["output.bias"], relu))
    for line, is_known in zip(solar.first(solar.query_features(strange)), has_known, strict=True):
        assert torch.allclose(line, of_biases, atol=1e-6) != is_known


def test_a_feature_of_value_0_is_none() -> None:
    """As the data say: what a query does not name is 0."""
    zeros, bare = sparse([[(0, 0.0), (1, 1.0)], [(5, 0.0)]]), sparse([[(1, 1.0)], []])
    chunk = chunk_of(FEATURES, zeros)
    assert chunk.known.tolist() == [1]
    assert torch.equal(chunk(chunk.features(zeros)), chunk(chunk.features(bare)))
    assert solar_of(FEATURES, zeros, [1]).are_known(zeros) == [True, False]


def test_a_chunk_learns_each_token_once_and_ascending() -> None:
    assert chunk_of(FEATURES, sparse(BAGS)).known.tolist() == [0, 1, 3, 5]
    chunk = chunk_of(TEXT, TEXTS)
    assert len(chunk.known) == len({word for text in TEXTS for word in text.split()})
    assert chunk.known.tolist() == sorted(chunk.known.tolist())
    assert len(chunk_of(VECTOR, VECTORS).known) == 0


@pytest.mark.parametrize(("expected", "share"), [(1.0, 0.2), (2.0, 0.4), (2.5, 0.5), (4.0, 0.5)])
def test_a_bucket_begins_at_its_share_of_the_positives(expected: float, share: float) -> None:
    assert torch.allclose(Chunk(TEXT, 0, expected).output.bias.sigmoid(), torch.full((5,), share))


def test_a_single_bucket() -> None:
    chunk = chunk_of(replace(TEXT, num_buckets=1), TEXTS)
    assert chunk(chunk.features(TEXTS)).shape == (3, 1)


@pytest.mark.parametrize(("config", "inputs"), INPUTS, ids=KINDS)
def test_weights_come_back_with_the_tokens_that_they_are_for(config: ChunksConfig, inputs: Any) -> None:
    chunk = chunk_of(config, inputs)
    back = Chunk(config, 3)
    weight_files.load(back, weight_files.to_bytes(chunk))
    assert torch.equal(back.known, chunk.known)
    assert torch.equal(back(back.features(inputs)), chunk(chunk.features(inputs)))


def test_weights_of_another_seed_are_refused() -> None:
    weights = weight_files.to_bytes(chunk_of(TEXT, TEXTS, seed=4))
    with pytest.raises(ValueError, match="weights of a chunk must be of seed 3, got seed 4: train it again"):
        weight_files.load(Chunk(TEXT, 3), weights)


def test_weights_of_another_size_are_refused() -> None:
    weights = weight_files.to_bytes(chunk_of(TEXT, TEXTS))
    with pytest.raises(ValueError, match=r"got output\.bias of shape \(5,\) in place of \(6,\)"):
        weight_files.load(Chunk(replace(TEXT, num_buckets=6), 3), weights)


def test_no_two_chunks_of_any_two_runs_have_one_seed() -> None:
    assert len({chunk_seed(seed, number) for seed in range(3) for number in range(1000)}) == 3000


@pytest.mark.parametrize("values", ["probability", "logit"])
@pytest.mark.parametrize("numbers", [[0, 1, 2], [2, 0], [1]])
def test_tables_are_means_over_the_chunks_that_are_trained(values: str, numbers: list[int]) -> None:
    solar = solar_of(TEXT, TEXTS, numbers, values)
    query = solar.encode_queries(solar.query_features(TEXTS))
    assert query.tables.shape == (3, 3, 5)
    assert query.temperature.tolist() == [1, 1, 1]
    logits: dict[int, Any] = {}
    for number in range(3):
        if number in numbers:
            chunk = chunk_of(TEXT, TEXTS, seed=number)
            logits[number] = chunk(chunk.features(TEXTS))
        else:
            assert not query.tables[:, number].any()

    codes = [[4, 0, 2], [1, 1, 1]]
    scores = solar.similarity.scores(query, Codes(torch.tensor(codes)))
    for row, line in enumerate(scores.tolist()):
        for code, score in zip(codes, line, strict=True):
            said = [logits[number][row, code[number]].item() for number in numbers]
            worth = [oracles.vectors.sigmoid(logit) for logit in said] if values == "probability" else said
            assert score == pytest.approx(sum(worth) / len(worth), abs=1e-6)


def test_all_chunks_of_a_text_hash_it_by_seeds_of_their_own() -> None:
    solar = solar_of(TEXT, TEXTS, [0, 1])
    own = [chunk.hidden(solar.query_features(["red"])) for chunk in solar.chunks.values()]
    for chunk, hidden in zip(solar.chunks.values(), own, strict=True):
        [[(place, _)]] = bags_of(TEXT, ["red"], chunk.seed)
        assert torch.allclose(hidden[0], (chunk.input.weight[place] + chunk.hidden_bias).relu())


@pytest.mark.parametrize("values", ["probability", "logit"])
def test_bfloat16_is_close_and_gives_float32(values: str) -> None:
    config = replace(TEXT, hidden=64, num_buckets=40)
    solar = solar_of(config, TEXTS, [0, 1, 2], values)
    features = solar.query_features(TEXTS)
    exact, rounded = (solar.encode_queries(features, precision).tables for precision in (torch.float32, torch.bfloat16))
    assert rounded.dtype == torch.float32
    assert not torch.equal(exact, rounded)
    assert torch.allclose(exact, rounded, atol=0.02)


@pytest.mark.parametrize(("config", "inputs"), INPUTS, ids=KINDS)
def test_it_has_the_surface_of_a_model(config: ChunksConfig, inputs: Any) -> None:
    solar = solar_of(config, inputs, [0])
    assert solar.form == config.input
    assert solar.similarity.num_buckets == 5


def test_no_chunk_is_no_model() -> None:
    with pytest.raises(ValueError, match="a model must have at least 1 trained chunk, got none"):
        Solar(TEXT, LookUpConfig(), {})


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("num_chunks", 0, "num_chunks must be at least 1, got 0"),
        ("num_chunks", 1001, "num_chunks must be at most 1000, got 1001"),
        ("num_buckets", -1, "num_buckets must be at least 0, got -1"),
        ("hidden", 0, "hidden must be at least 1, got 0"),
        ("num_inputs", 0, "num_inputs must be at least 1, got 0"),
        ("width", -1, "width must be at least 0, got -1"),
        ("ngram_sizes", (3, 1), r"ngram_sizes must be at least 2, got \(3, 1\)"),
    ],
)
def test_config_out_of_range(field: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ChunksConfig(**{field: value})
