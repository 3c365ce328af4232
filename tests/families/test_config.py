import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rails_ray.cli.encode import Encode
from rails_ray.families import config, recipes
from rails_ray.families.config import DataConfig, RunConfig
from rails_ray.families.dual_encoder.config import Loss
from rails_ray.families.dual_encoder.negatives import (
    CrossDeviceNegatives,
    InBatchNegatives,
    Negatives,
    UniformNegatives,
)
from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.families.solar.train import SolarTraining
from rails_ray.families.vector_items.storing import FullItems, PqItems
from rails_ray.modules.encoders.components import ComponentsConfig
from rails_ray.modules.encoders.frozen import SentenceTransformerConfig
from rails_ray.modules.encoders.named_vectors import NamedVectorsConfig
from rails_ray.modules.encoders.sasrec import SasrecConfig
from rails_ray.modules.encoders.solar import ChunksConfig
from rails_ray.modules.encoders.text import TransformerConfig
from rails_ray.modules.losses.bucket_cross_entropy import BucketCrossEntropyConfig
from rails_ray.modules.losses.config import (
    ContrastiveConfig,
    MaximumLikelihoodConfig,
    PointwiseConfig,
    TermsConfig,
)
from rails_ray.modules.similarities.dot_product import DotProductConfig
from rails_ray.modules.similarities.look_up import LookUpConfig
from rails_ray.modules.similarities.mol import MixtureOfLogitsConfig
from rails_ray.storage import runs
from rails_ray.storage.filesystem import Storage
from rails_ray.training.contrast import Gathered, Streamed, WithinBatch
from support.examples import (
    small_config,
    small_history_config,
    small_named_config,
    small_solar_config,
)


@pytest.mark.parametrize("recipe", recipes.RECIPES)
def test_a_config_comes_back_from_its_json(recipe) -> None:
    assert config.from_json(config.to_json(recipe())) == recipe()


def test_every_field_of_solar_comes_back() -> None:
    sizes = ChunksConfig(
        num_chunks=3,
        num_buckets=7,
        codes="hashed",
        hidden=9,
        num_inputs=11,
        ngram_sizes=(3, 5),
        reads_items=True,
        width=2,
    )
    made = small_solar_config().with_family(
        encoder=sizes,
        similarity=LookUpConfig(values="logit"),
        loss=BucketCrossEntropyConfig(num_sampled_buckets=4),
    )
    assert config.from_json(config.to_json(made)) == made


@pytest.mark.parametrize("name", ["text-mol", "text-transformer-dot", "text-solar", "baseline-bm25", "emoji-dot"])
def test_a_run_from_before_words_had_a_name_cuts_them_as_then(name: str) -> None:
    stored = json.loads(config.to_json(recipes.by_name(name)))
    part = stored["family"] if name == "baseline-bm25" else stored["family"]["encoder"]
    assert part.pop("words") == "unicode"
    former = config.from_json(json.dumps(stored).encode())
    own: Any = former.family
    assert (own.words if name == "baseline-bm25" else own.encoder.words) == "alphanumeric"
    assert config.from_json(config.to_json(former)) == former


def test_a_run_from_before_layers_positions_and_schedules_had_names_reads_as_then() -> None:
    stored = json.loads(config.to_json(recipes.by_name("ml1m-sasrec")))
    encoder, training = stored["family"]["encoder"], stored["training"]
    then = {"layers": "transformer", "swiglu_factor": 4, "positions_from": "oldest", "item_dropout": 0.0}
    assert {name: encoder.pop(name) for name in then} == then
    assert training.pop("schedule") == "linear"
    assert config.from_json(json.dumps(stored).encode()) == recipes.by_name("ml1m-sasrec")


@pytest.mark.parametrize(("name", "field"), [("vector-cosine", "encoder"), ("text-rbe", "features")])
def test_a_run_from_before_prompts_reads_texts_without(name: str, field: str) -> None:
    made = recipes.by_name(name).with_family(**{field: SentenceTransformerConfig(pretrained="models/e5")})
    assert config.from_json(config.to_json(made)) == made
    stored = json.loads(config.to_json(made))
    for missing in ("query_prompt", "item_prompt", "truncate_dim"):
        del stored["family"][field][missing]
    own = getattr(config.from_json(json.dumps(stored).encode()).family, field)
    assert (own.query_prompt, own.item_prompt, own.truncate_dim) == (None, None, 0)


@pytest.mark.parametrize("name", ["ml1m-hstu", "vector-cosine", "features-solar", "text-rbe"])
def test_a_run_without_words_is_read_as_it_is(name: str) -> None:
    stored = config.to_json(recipes.by_name(name))
    assert config.from_json(stored) == recipes.by_name(name)


def test_a_way_to_cut_words_that_is_none() -> None:
    stored = config.to_json(recipes.by_name("text-mol")).replace(b'"unicode"', b'"latin"')
    with pytest.raises(ValueError, match=r"words: Input should be 'unicode' or 'alphanumeric'"):
        config.from_json(stored)


@pytest.mark.parametrize("data", [b"", b"[]", b'{"family": 3}', b'{"family": {"kind": "bm25"', b"[" * 10_000])
def test_what_is_no_config(data: bytes) -> None:
    with pytest.raises(ValueError, match="a run's config must have the fields of RunConfig, got: "):
        config.from_json(data)


@pytest.mark.parametrize(
    "fields",
    [
        {"encoder": TransformerConfig(width=8)},
        {"encoder": SasrecConfig(width=8, num_items=3, corpus="a")},
        {"similarity": DotProductConfig(temperature=0.5)},
        {"loss": ContrastiveConfig(kind="exp_nce")},
        {"loss": PointwiseConfig()},
        {"loss": MaximumLikelihoodConfig()},
        {"negatives": InBatchNegatives(), "encode_size": 4},
        {"negatives": CrossDeviceNegatives(block_size=3)},
    ],
    ids=str,
)
def test_every_member_of_a_union_comes_back_by_its_kind(fields: dict[str, Any]) -> None:
    made = small_config().with_family(**fields)
    back = config.from_json(config.to_json(made))
    assert back == made
    assert {name: type(getattr(back.family, name)) for name in fields} == {
        name: type(value) for name, value in fields.items()
    }


@pytest.mark.parametrize("recipe", recipes.RECIPES)
def test_a_recipe_is_found_by_its_own_name(recipe) -> None:
    assert recipes.by_name(recipe().name) == recipe()


def test_an_unknown_recipe() -> None:
    with pytest.raises(ValueError, match=r"recipe must be one of emoji-mol, emoji-dot, text-mol, .*, got 'emoji'"):
        recipes.by_name("emoji")


def of_family(value: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return value | {"family": value["family"] | fields}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda value: value | {"speed": 9}, "RunConfig, got: speed: Unexpected keyword argument"),
        (lambda value: value | {"training": {"num_steps": 0}}, "num_steps must be at least 1, got 0"),
        (lambda value: value | {"training": {"num_steps": "7"}}, "training.num_steps: Input should be a valid integer"),
        (lambda value: value | {"family": {"kind": "other"}}, "family: Input tag 'other' .* 'dual_encoder', 'solar'"),
        (lambda value: value | {"family": {}}, "family: Unable to extract tag using discriminator 'kind'"),
        (lambda value: of_family(value, speed=9), "family.dual_encoder.speed: Unexpected keyword argument"),
        (lambda value: of_family(value, encoder={"kind": "two_tower", "ngram_sizes": [1]}), "must be at least 2"),
        (lambda value: of_family(value, encoder={"kind": "two_tower", "num_heads": 2}), "num_heads: Unexpected"),
        (
            lambda value: of_family(value, encoder={"kind": "sasrec", "num_heads": 3}),
            "of the 3 heads, got 64",
        ),
        (lambda value: [value], "must have the fields of RunConfig"),
    ],
)
def test_a_config_that_is_none(change, message: str) -> None:
    value = change(json.loads(config.to_json(small_config())))
    with pytest.raises(ValueError, match=message):
        config.from_json(json.dumps(value).encode())


def test_bytes_that_are_no_config() -> None:
    with pytest.raises(ValueError, match="a run's config must have the fields of RunConfig, got: : Invalid JSON"):
        config.from_json(b"{")


TEXTS = small_config()
NAMED = small_named_config()


HISTORIES = small_history_config()
SOLAR = small_solar_config()


@pytest.mark.parametrize(
    ("made", "fields", "message"),
    [
        (
            HISTORIES,
            {"negatives": InBatchNegatives()},
            r"negatives\.kind must be one of uniform, popularity, mixed for a model of histories, got 'in_batch'",
        ),
        (HISTORIES, {"encode_size": 8}, r"encode_size must be 0 for a model of histories, got 8"),
        (TEXTS, {"encode_size": -1}, "encode_size must be at least 0, got -1"),
        (
            TEXTS,
            {"compile_blocks": True},
            "encoder.kind must be one of transformer, sasrec, hstu for compile_blocks, got 'two_tower'",
        ),
        (
            TEXTS,
            {"similarity": MixtureOfLogitsConfig(num_query_components=1, num_item_components=1)},
            r"mixture_of_logits must have at least 2 pairs of components to weigh, got 1 x 1: take dot_product$",
        ),
        (
            TEXTS,
            {"similarity": MixtureOfLogitsConfig(num_item_components=0)},
            r"similarity\.num_item_components must be at least 1 for encoder\.kind two_tower, got 0",
        ),
        (
            NAMED,
            {"encoder": NamedVectorsConfig(query_columns=("vector",), item_columns=("vector",))},
            r"at least 2 pairs of components to weigh, got 1 x 1: take dot_product, with encoder\.kind vectors",
        ),
        (
            NAMED,
            {"similarity": MixtureOfLogitsConfig(num_query_components=3, num_item_components=0)},
            r"similarity\.num_query_components must be the 2 of encoder\.query_columns, or 0 for as many, got 3",
        ),
        (
            NAMED,
            {"components": ComponentsConfig()},
            r"encoder\.kind named_vectors must have components\.queries and components\.items given under "
            r"similarity\.kind mixture_of_logits, got projected and projected under mixture_of_logits",
        ),
        (NAMED, {"similarity": DotProductConfig()}, "got given and given under dot_product"),
    ],
)
def test_training_that_cannot_be(made: RunConfig, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made.with_family(**fields)


@pytest.mark.parametrize("loss", [PointwiseConfig(), MaximumLikelihoodConfig()], ids=str)
def test_a_loss_that_needs_all_items_at_once_refuses_blocks(loss: Loss) -> None:
    message = rf"negatives\.block_size must be 0 for loss\.kind {loss.kind}, got 8: only beta_nce, exp_nce and"
    with pytest.raises(ValueError, match=message):
        TEXTS.with_family(negatives=CrossDeviceNegatives(block_size=8), loss=loss)


@pytest.mark.parametrize(
    ("negatives", "contrast"),
    [
        (UniformNegatives(), WithinBatch),
        (InBatchNegatives(), WithinBatch),
        (CrossDeviceNegatives(), Gathered),
        (CrossDeviceNegatives(block_size=8), Streamed),
    ],
    ids=str,
)
def test_negatives_choose_what_queries_are_compared_with(negatives: Negatives, contrast: type) -> None:
    chosen = DualEncoderTraining.of(TEXTS.with_family(negatives=negatives)).contrast()
    assert type(chosen) is contrast
    assert getattr(chosen, "block_size", 8) == 8


@pytest.mark.parametrize(
    ("made", "name", "message"),
    [
        (TEXTS.training, "precision", "precision must be one of float32, bfloat16, auto, got 'other'"),
        (TEXTS.training, "schedule", "schedule must be one of linear, constant, got 'other'"),
        (SasrecConfig(), "layers", "layers must be one of transformer, ligr, got 'other'"),
        (SasrecConfig(), "positions_from", "positions_from must be one of oldest, newest, got 'other'"),
        (ComponentsConfig(), "lengths", "lengths must be one of one, at_most_one, got 'other'"),
        (TransformerConfig(), "pooling", "pooling must be mean or aggregation, got 'other'"),
        (SOLAR.family.similarity, "values", "values must be probability or logit, got 'other'"),
        (SOLAR.family.encoder, "codes", "codes must be one of balanced, hashed, got 'other'"),
        (SOLAR.family.encoder, "input", "input must be one of text, features, vector, got 'other'"),
    ],
)
def test_a_word_that_is_none_of_a_fields(made: object, name: str, message: str) -> None:
    """As a stored config may hold it: in tests alone, types are checked before."""
    other = copy.copy(made)
    object.__setattr__(other, name, "other")
    with pytest.raises(ValueError, match=message):
        other.__post_init__()


def test_a_config_that_was_stored_before_a_field_was_there_has_its_default() -> None:
    stored = json.loads(config.to_json(TEXTS))
    del stored["training"]["precision"]
    del stored["family"]["encode_size"]
    assert config.from_json(json.dumps(stored).encode()) == TEXTS


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BucketCrossEntropyConfig(num_sampled_buckets=-1), "num_sampled_buckets must be at least 0, got -1"),
        (lambda: UniformNegatives(num_items=0), "num_items must be at least 1, got 0"),
        (lambda: CrossDeviceNegatives(block_size=-1), "block_size must be at least 0, got -1"),
        (lambda: ContrastiveConfig(pointwise_weight=-0.5), "pointwise_weight must be at least 0, got -0.5"),
        (lambda: TermsConfig(mutual_information_weight=-1.0), "mutual_information_weight must be at least 0, got -1.0"),
    ],
)
def test_a_size_or_weight_that_cannot_be(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_config_from_before_seen_items_could_be_chosen(tmp_path: Path) -> None:
    """It excludes them, and its unfinished run goes on; with a choice it is another run."""
    made, storage = small_history_config(), Storage(str(tmp_path))
    fields = json.loads(config.to_json(made))
    assert fields["data"].pop("exclude_seen", "none") is None
    before = json.dumps(fields).encode()
    assert config.from_json(before) == made
    assert made.data.excludes_seen
    runs.begin(storage, "r", before, "digest")
    runs.begin(storage, "r", config.to_json(made), "digest")
    chosen = replace(made, data=replace(made.data, exclude_seen=False))
    assert not chosen.data.excludes_seen
    with pytest.raises(ValueError, match=r"got another data\.exclude_seen: False instead of None"):
        runs.begin(storage, "r", config.to_json(chosen), "digest")


def test_a_run_from_before_neither_refuses_vectors_of_zeros_nor_finds_them_last() -> None:
    stored = json.loads(config.to_json(small_config()))
    assert stored["data"].pop("zero_vectors") == "refuse"
    former = config.from_json(json.dumps(stored).encode())
    assert former.data.zero_vectors is None
    assert DataConfig(folder="f").over(former.data).zero_vectors is None
    assert DataConfig(folder="f", zero_vectors="keep").over(former.data).zero_vectors == "keep"
    assert DataConfig(folder="f").over(DataConfig(zero_vectors="keep")).zero_vectors == "keep"


def test_encode_takes_the_choice_and_codes_alone_cannot_keep_zeros() -> None:
    made = Encode(recipe="vector-cosine", folder="f", zero_vectors="keep").untrained()
    assert made is not None
    assert made.data.zero_vectors == "keep"
    for items, stores in (
        (PqItems(num_subspaces=2), False),
        (PqItems(num_subspaces=2, has_vectors=True), True),
        (FullItems(), True),
    ):
        assert DualEncoderTraining.of(small_config().with_family(items=items)).stores_directions == stores
    assert SolarTraining.of(small_solar_config()).stores_directions
