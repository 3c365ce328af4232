import hashlib
import subprocess
import sys

import pytest
import torch

import oracles.encoders
from rails_ray.modules import weight_files
from rails_ray.modules.encoders import tokenizer
from rails_ray.modules.encoders.text import TextTransformer, Tokens, TransformerConfig
from rails_ray.modules.encoders.tokenizer import BLANK, PADDING
from support.cross_device_worker import ITEMS, QUERIES

TEXTS = [*QUERIES, *ITEMS]


def encoder(pooling: str = "mean", dropout: float = 0.0) -> TextTransformer:
    torch.manual_seed(0)
    made = TextTransformer(
        TransformerConfig(
            width=8,
            num_blocks=2,
            num_heads=2,
            hidden=12,
            max_length=6,
            vocabulary_size=300,
            pooling=pooling,
            dropout=dropout,
        ),
        (3, 2),
    )
    for parameter in made.parameters():  # biases and scales too, so that an equation without them would not do
        parameter.data += 0.1 * torch.randn_like(parameter)
    made.learn(TEXTS)
    return made.eval()


@pytest.mark.parametrize("pooling", ["mean", "aggregation"])
def test_representations_equal_the_equations(pooling: str) -> None:
    made = encoder(pooling)
    features = made.query_features(["red car", "a car that is blue and green", ""])
    weights = {name: tensor.tolist() for name, tensor in made.named_parameters()}
    for side, encode in (("query", made.queries), ("item", made.items)):
        found = encode(features)
        for line, ids in zip(found.tolist(), features.ids.tolist(), strict=True):
            expected = oracles.encoders.text_transformer([i for i in ids if i != PADDING], weights, 2, side)
            assert line == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert made.query_width == (24 if pooling == "aggregation" else 8) == made.queries(features).shape[1]
    assert made.item_width == (16 if pooling == "aggregation" else 8) == made.items(features).shape[1]


@pytest.mark.parametrize("pooling", ["mean", "aggregation"])
def test_a_text_is_the_same_in_any_company(pooling: str) -> None:
    made = encoder(pooling)
    alone = made.queries(made.query_features(["red car"]))
    among = made.queries(made.query_features(["the green tree and the stone", "red car", ""]))
    assert torch.allclose(alone[0], among[1], atol=1e-6)
    features = made.query_features(["the green tree and the stone", "red car", ""])
    assert features.take(torch.tensor([1])).ids.shape[1] < features.ids.shape[1]
    assert torch.allclose(made.queries(features.take(torch.tensor([1]))), alone, atol=1e-6)


def test_components_begin_apart() -> None:
    torch.manual_seed(0)
    made = TextTransformer(TransformerConfig(pooling="aggregation", dropout=0.0), (4, 4))
    made.learn(TEXTS)
    pooled = made.queries(made.query_features(["red car"])).unflatten(1, (4, -1))[0]
    cosines = torch.nn.functional.cosine_similarity(pooled[:, None], pooled[None], dim=-1)
    assert (cosines - torch.eye(4)).max() < 0.9


def test_text_is_lower_cased_cut_and_never_empty() -> None:
    made = encoder()
    ids = made.query_features(["Red CAR", "red car", "", "  ", "the green tree that is a stone of some size"]).ids
    assert torch.equal(ids[0], ids[1])
    assert ids[2].tolist() == ids[3].tolist() == [BLANK] + [PADDING] * (ids.shape[1] - 1)
    assert ids.shape[1] == 6
    assert made.query_features([]).ids.shape == (0, 1)
    assert Tokens(ids).take(torch.empty(0, dtype=torch.int64)).ids.shape == (0, 1)
    unseen = made.query_features(["шар 球 🎈"]).ids[0]
    assert BLANK not in unseen.tolist()
    assert (made.is_blank("?!"), made.is_blank("球")) == (True, False)


def test_a_token_parts_no_letter_from_its_marks() -> None:
    texts = ["हिन्दी किताब", "ภาษา", "l'avion 8:30 किताब", "İSTANBUL"]
    learnt = tokenizer.read(tokenizer.learn(texts, 400))
    tokens = tokenizer.encode(learnt, [*texts, "  ", "istanbul"], 90)
    assert learnt.encode("हिन्दी किताब").tokens == learnt.encode("हिन्दी").tokens + learnt.encode("किताब").tokens
    assert len(learnt.encode("हिन्दी").tokens) == 1, "a word that was learnt"
    assert learnt.decode(tokens[2].tolist()).strip() == "l'avion 8:30 किताब"
    assert torch.equal(tokens[3], tokens[5])
    assert tokens[4].tolist() == [BLANK] + [PADDING] * (tokens.shape[1] - 1)


def test_tokens_of_before_are_learnt_and_read_as_then() -> None:
    """The figures are those of commit 016d33f."""
    texts = ["Red CAR", "हिन्दी में", "İstanbul ﬁne", "the red car is red"]
    learnt = tokenizer.learn(texts * 3, 320, "alphanumeric")
    assert hashlib.sha256(learnt).hexdigest() == "b3e914bb1f067c3bc639e5a623c16ba613c601cbce288b142ad37e02fee8b646"
    ids = tokenizer.encode(tokenizer.read(learnt), ["Red हिन्दी İ"], 40, "alphanumeric")
    assert ids.tolist() == [[262, 287, 281, 280, 283, 279, 282, 265, 275]]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_blocks_make_no_difference(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["red car", "", "a blue hat, and another", "car"]
    learnt = tokenizer.read(tokenizer.learn(texts, 300))
    whole = tokenizer.encode(learnt, texts, 8)
    monkeypatch.setattr(tokenizer, "BLOCK_TEXTS", size)
    assert torch.equal(tokenizer.encode(learnt, texts, 8), whole)


def test_a_text_that_names_a_special_token_is_a_text() -> None:
    made = encoder()
    ids = made.query_features(["[PADDING]", "a [BLANK] b"]).ids
    assert ids[0, 0] not in (PADDING, BLANK)
    assert BLANK not in ids[1].tolist()
    assert made.queries(Tokens(ids)).isfinite().all()


def test_tokens_that_are_none() -> None:
    made = encoder()
    with pytest.raises(ValueError, match="a model's tokenizer must be as it was stored, got: "):
        made.set_extra_state(torch.tensor(list(b"{}"), dtype=torch.uint8))


def test_tokens_are_stored_with_the_weights() -> None:
    made = encoder("aggregation")
    other = TextTransformer(made.config, (3, 2)).eval()
    weight_files.load(other, weight_files.to_bytes(made))
    texts = ["red car", "grey stones"]
    assert torch.equal(other.queries(other.query_features(texts)), made.queries(made.query_features(texts)))
    untrained = TextTransformer(made.config, (3, 2))
    weight_files.load(untrained, weight_files.to_bytes(TextTransformer(made.config, (3, 2))))
    assert untrained.get_extra_state().numel() == 0


def test_the_same_texts_give_the_same_tokens_in_every_process() -> None:
    code = (
        "import hashlib; from rails_ray.modules.encoders import tokenizer;"
        f"print(hashlib.sha256(tokenizer.learn({TEXTS * 3!r}, 320)).hexdigest())"
    )
    digests = {subprocess.check_output([sys.executable, "-c", code], text=True).strip() for _ in range(2)}
    assert digests == {hashlib.sha256(tokenizer.learn(TEXTS * 3, 320)).hexdigest()}


def test_dropout_is_of_training_alone() -> None:
    made = encoder(dropout=0.5)
    features = made.query_features(["red car"])
    assert torch.equal(made.queries(features), made.queries(features))
    made.train()
    assert not torch.equal(made.queries(features), made.queries(features))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"width": 0}, "width must be at least 1, got 0"),
        ({"vocabulary_size": 200}, "vocabulary_size must be at least 258, got 200"),
        ({"max_length": 0}, "max_length must be at least 1, got 0"),
        ({"width": 10, "num_heads": 4}, "width must be a multiple of the 4 heads, got 10"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
    ],
)
def test_sizes_that_cannot_be(fields: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TransformerConfig(**fields)
