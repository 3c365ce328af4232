"""Recipes for vectors that you have already, given by --data.folder: of sentence-transformers, of an API, of a model of
your own.

An item's components take as many bytes under `vector-mol` as under `vector-dot`; its mean component takes 256 more, and
its gate 64. On TLDR both find as much, on SciFact the dot product finds more (docs/log/training.md): begin with it.
"""

from dataclasses import replace

from rails_ray.families.config import RunConfig
from rails_ray.families.dual_encoder.config import DualEncoderConfig
from rails_ray.families.dual_encoder.negatives import CrossDeviceNegatives
from rails_ray.families.recipes.recipe import Recipe
from rails_ray.families.vector_items.storing import PqItems, TrainedConfig
from rails_ray.modules.encoders.components import ComponentsConfig
from rails_ray.modules.encoders.named_vectors import NamedVectorsConfig
from rails_ray.modules.encoders.vectors import VectorsConfig
from rails_ray.modules.losses.config import NoneConfig
from rails_ray.modules.schedule import TrainingConfig
from rails_ray.modules.similarities.dot_product import DotProductConfig
from rails_ray.modules.similarities.mol import MixtureOfLogitsConfig


@Recipe
def vector_dot() -> RunConfig:
    """A linear map of queries and one of items, which begin as the cosine, under a dot product."""
    return RunConfig(
        name="vector-dot",
        family=DualEncoderConfig(
            encoder=VectorsConfig(),
            components=ComponentsConfig(width=256, query_hidden=0, gate_hidden=64),
            similarity=DotProductConfig(),
        ),
        training=TrainingConfig(num_steps=1000, batch_size=512, learning_rate=1e-3),
    )


@Recipe
def vector_mol() -> RunConfig:
    """`vector_dot` under a Mixture of Logits of 4 x 4 components."""
    return replace(vector_dot(), name="vector-mol").with_family(
        components=ComponentsConfig(width=64, query_hidden=0, gate_hidden=64),
        similarity=MixtureOfLogitsConfig(
            num_query_components=4,
            num_item_components=4,
            gate_hidden=16,
            logit_dropout=0.0,
            gate_dropout=0.0,
        ),
    )


@Recipe
def vector_mopq() -> RunConfig:
    """The cosine of the vectors as they are, by codebooks that are trained and store an item in 8 bytes. The items of
    all workers are negatives for each query."""
    return replace(vector_cosine(), name="vector-mopq").with_family(
        negatives=CrossDeviceNegatives(), items=PqItems(quantizer=TrainedConfig())
    )


@Recipe
def vector_cosine() -> RunConfig:
    """The cosine of the vectors as they are. Nothing is trained."""
    return replace(vector_dot(), name="vector-cosine").with_family(
        components=ComponentsConfig(queries="given", items="given"), loss=NoneConfig()
    )


@Recipe
def vectors_gated() -> RunConfig:
    """Several vectors of each query and item as they are, such as those of titles and bodies. Only their weights are
    trained, by a Mixture of Logits over all pairs of a query's vector and an item's."""
    return replace(vector_dot(), name="vectors-gated").with_family(
        encoder=NamedVectorsConfig(),
        components=ComponentsConfig(queries="given", items="given", gate_hidden=16),
        similarity=MixtureOfLogitsConfig(
            num_query_components=0,
            num_item_components=0,
            gate_hidden=16,
            logit_dropout=0.0,
            gate_dropout=0.0,
            gate_inputs=("query", "item", "logits"),  # the best of five on validation (docs/log/training.md)
        ),
    )
