import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles.scores
from rails_ray.families.bm25.model import Bm25Model, term_of
from rails_ray.modules import weight_files
from rails_ray.modules.model import Model
from rails_ray.modules.similarities.bm25 import NO_TERM, TermWeights
from rails_ray.modules.similarities.states import concatenate, take

ITEMS = ["red car", "Red, red boat!", "blue boat on a blue sea", "", "sea"]
texts = st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=6).map(" ".join)


def fitted(items: list[str], *, k1: float = 1.2, b: float = 0.75, max_terms: int = 8) -> Bm25Model:
    model = Bm25Model(k1=k1, b=b, max_terms=max_terms).eval()
    model.fit(items)
    return model


def items_of(model: Bm25Model, items: list[str]) -> TermWeights:
    return model.encode_items(model.item_features(items))


def scores_of(model: Bm25Model, queries: list[str], items: list[str]) -> torch.Tensor:
    query = model.encode_queries(model.query_features(queries))
    scores: torch.Tensor = model.similarity.scores(query, items_of(model, items))
    return scores


@given(
    st.lists(texts, max_size=3),
    st.lists(texts, min_size=1, max_size=6),
    st.sampled_from([0.0, 0.9, 1.2, 50.0]),
    st.sampled_from([0.0, 0.75, 1.0]),
)
def test_scores_equal_the_oracle(queries: list[str], items: list[str], k1: float, b: float) -> None:
    found = scores_of(fitted(items, k1=k1, b=b), queries, items)
    cut = [item.split() for item in items]
    for line, query in enumerate(queries):
        expected = [oracles.scores.bm25(query.split(), item, cut, k1, b) for item in cut]
        assert found[line].tolist() == pytest.approx(expected, rel=1e-5, abs=1e-7)
    assert isinstance(fitted(items), Model)


def test_a_word_that_a_query_repeats_counts_twice() -> None:
    model = fitted(ITEMS)
    once, twice, other = scores_of(model, ["boat", "boat boat", "boat boat sea"], ITEMS)
    assert torch.allclose(twice, 2 * once)
    assert torch.allclose(other, 2 * once + scores_of(model, ["sea"], ITEMS)[0])


def test_rare_words_weigh_more_and_long_items_less() -> None:
    items = ["x rare", "x common", "x common", "x common and many more words"]
    model = fitted(items)
    assert scores_of(model, ["rare"], items)[0, 0] > scores_of(model, ["common"], items)[0, 1]
    short, long = scores_of(model, ["common"], items)[0, [1, 3]]
    assert short > long > 0


def test_case_and_punctuation_do_not_matter() -> None:
    model = fitted(ITEMS)
    assert torch.equal(scores_of(model, ["RED!"], ITEMS), scores_of(model, ["red"], ITEMS))


def test_words_of_any_script_are_found_whole() -> None:
    """By a query in another case, width or composition; an item that shares vowels alone is not found."""
    items = ["हिन्दी किताब", "होना", "京都の図書館", "都と京の図書館", "ﬁne İstanbul", "caf\u00e9"]
    scores = scores_of(fitted(items), ["हिन्दी", "京都", "FINE ISTANBUL", "CAFE\u0301"], items)
    assert [line.nonzero().flatten().tolist() for line in scores] == [[0], [2, 3], [4], [5]]
    assert scores[1, 2] > scores[1, 3], "both characters, and in this order"


def test_words_of_no_item_find_nothing() -> None:
    model = fitted(ITEMS)
    assert not scores_of(model, ["green", ""], ITEMS).any()
    assert model.are_known(["green", "", "green car", "?"]) == [False, False, True, False]
    assert [model.is_blank(query) for query in ("green", "", " -!", "7")] == [False, True, True, False]
    assert model.are_known([]) == []


def test_items_that_came_after_the_words_were_counted() -> None:
    """A word that no item held weighs as much as one can."""
    model = fitted(ITEMS)
    new, known = items_of(model, ["green"]), items_of(model, ["car"])
    assert new.weights[0, 0] > known.weights[0, 0] > 0


def test_long_items_keep_the_words_that_weigh_most() -> None:
    items = ["a b c d", "a b c", "a b", "a"]
    whole, cut = fitted(items), items_of(fitted(items, max_terms=2), items)
    weights = items_of(whole, items).weights.sort(dim=1, descending=True).values
    assert cut.terms.shape == (4, 2)
    assert cut.terms[0].tolist() == [term_of("c"), term_of("d")]
    assert torch.equal(cut.weights.sort(dim=1, descending=True).values, weights[:, :2])
    assert cut.terms[3].tolist() == [term_of("a"), NO_TERM]


def test_an_item_is_the_same_whatever_it_is_encoded_with() -> None:
    """Which of its words are kept too, where many weigh the same."""
    alike, long = " ".join(f"v{i}" for i in range(60)), " ".join(f"w{i}" for i in range(3000))
    model = fitted([alike, long], max_terms=5)
    together, alone = items_of(model, [alike, long]), items_of(model, [alike])
    assert torch.equal(together.terms[:1], alone.terms)
    assert torch.equal(together.weights[:1], alone.weights)
    assert alone.terms[0].tolist() == [term_of(f"v{i}") for i in range(5)]


def test_blocks_of_items_are_of_one_shape() -> None:
    model = fitted(ITEMS)
    blocks = concatenate(
        [items_of(model, ITEMS[:1]), items_of(model, ITEMS[1:3]), items_of(model, []), items_of(model, ITEMS[3:])]
    )
    whole = items_of(model, ITEMS)
    assert torch.equal(blocks.terms, whole.terms)
    assert torch.equal(blocks.weights, whole.weights)


def test_no_items_and_no_queries() -> None:
    empty = fitted([])
    assert items_of(empty, []).terms.shape == (0, 8)
    assert scores_of(empty, ["red"], []).shape == (1, 0)
    assert scores_of(fitted(ITEMS), [], ITEMS).shape == (0, 5)
    assert scores_of(empty, ["red"], ["red"]).item() > 0  # one that came later


@pytest.mark.parametrize("items", [ITEMS, ["one"], [], ["", "!"]], ids=["some", "one", "none", "blank"])
def test_a_stored_model_is_the_same_again(items: list[str]) -> None:
    model = fitted(items)
    back = Bm25Model(k1=1.2, b=0.75, max_terms=8)
    weight_files.load(back, weight_files.to_bytes(model))
    assert (back.num_items, back.num_words) == (model.num_items, model.num_words)
    assert torch.equal(back.terms, model.terms)
    assert torch.equal(scores_of(back, ["red boat"], ITEMS), scores_of(model, ["red boat"], ITEMS))
    assert back.are_known(["red", "boat"]) == model.are_known(["red", "boat"])


def test_words_are_counted_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than the 2^24 that float32 counts by ones."""
    model = fitted([])
    bags = model.item_features(["a b", "c"])
    many = type(bags)(bags.tokens, bags.starts, torch.tensor([2.0**24, 1.0, 1.0]))
    monkeypatch.setattr("rails_ray.families.bm25.model.counted", lambda items, cut: many)
    model.fit(["a b", "c"])
    assert model.num_words == 2**24 + 2


def test_states_lie_where_the_model_does() -> None:
    """Words are counted on the CPU all the same; "meta" stands for another device."""
    model = fitted(ITEMS).to("meta")
    query, items = model.encode_queries(model.query_features(["red"])), items_of(model, ITEMS)
    devices = {tensor.device.type for tensor in (query.terms, query.counts, query.temperature, items.terms)}
    assert devices == {"meta"}
    assert items.weights.device.type == "meta"
    assert model.are_known(["red"]) == [True]


def test_half_precision_changes_no_weight() -> None:
    """Neither words nor their numbers are rounded."""
    model = fitted(ITEMS)
    expected = items_of(model, ITEMS)
    half = items_of(model.half(), ITEMS)
    assert torch.equal(half.terms, expected.terms)
    assert torch.equal(half.weights, expected.weights)


def test_a_term_is_a_number_of_63_bits() -> None:
    numbers = [term_of(f"w{i}") for i in range(1000)]
    assert len(set(numbers)) == 1000
    assert 0 <= min(numbers) < max(numbers) < 2**63
    assert term_of("red") == term_of("red") != term_of("Red")


def test_a_representation_is_no_query() -> None:
    with pytest.raises(ValueError, match="a query of BM25 must be a text, got a representation"):
        fitted(ITEMS).query_state(torch.zeros(1, 3))


def test_rows_are_taken_from_features() -> None:
    model = fitted(ITEMS)
    features = model.item_features(ITEMS)
    rows = torch.tensor([2, 0])
    taken, whole = model.encode_items(features.take(rows)), items_of(model, ITEMS)
    assert torch.equal(taken.terms, take(whole, rows).terms)
