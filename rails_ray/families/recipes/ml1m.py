"""MovieLens-1M: what a user watches next, from the order of what they watched. Twenty epochs for two CPU cores, or with
`-long` the paper's hundred (fifty for HSTU): an hour of a core under a dot product, two to three under a mixture.

Source: RAILS, Table 3 and Appendix A.4.1.
Differs from the source: in twenty epochs temperature .03 instead of .05, which is better for both; a batch shares its
negatives, so more of them cost little; histories of 50 items, not 200. In long runs trials chose width, temperature and
rate of the dot products and of HSTU's mixture; a mixture's w has 32 hidden units instead of 128, and keeps all logits.
Measurements of these and other choices are in docs/log/training.md.
"""

from dataclasses import replace

from rails_ray.families.config import RunConfig
from rails_ray.families.dual_encoder.config import DualEncoderConfig
from rails_ray.families.dual_encoder.negatives import UniformNegatives
from rails_ray.families.recipes.histories import MIXTURE, sasrec
from rails_ray.families.recipes.recipe import Recipe
from rails_ray.modules.encoders.components import ComponentsConfig
from rails_ray.modules.encoders.hstu import HstuConfig
from rails_ray.modules.encoders.sasrec import SasrecConfig
from rails_ray.modules.losses.config import ContrastiveConfig
from rails_ray.modules.schedule import TrainingConfig
from rails_ray.modules.similarities.dot_product import DotProductConfig
from rails_ray.modules.similarities.mol import MixtureOfLogitsConfig


@Recipe
def ml1m_sasrec() -> RunConfig:
    """SASRec of two blocks under a dot product of projections, for twenty epochs."""
    training = TrainingConfig(num_steps=3780, batch_size=32, learning_rate=2e-3, validate_every=378, patience=3)
    return replace(sasrec(), name="ml1m-sasrec", training=training).with_family(
        encoder=SasrecConfig(num_blocks=2, max_length=50),
        components=ComponentsConfig(query_hidden=0, gate_hidden=64),
        similarity=DotProductConfig(temperature=0.03),
        negatives=UniformNegatives(num_items=512, shared_by="batch"),
    )


@Recipe
def ml1m_sasrec_mol() -> RunConfig:
    """Backbone of `ml1m_sasrec` under a mixture of 4 x 2 components, without dropout: that is for longer runs, and on a
    CPU it costs as much as the rest of the mixture."""
    return replace(ml1m_sasrec(), name="ml1m-sasrec-mol").with_family(
        similarity=replace(MIXTURE, num_item_components=2, temperature=0.03, gate_dropout=0.0)
    )


@Recipe
def ml1m_sasrec_long() -> RunConfig:
    """SASRec under a tuned dot product, for a hundred epochs."""
    return RunConfig(
        name="ml1m-sasrec-long",
        family=DualEncoderConfig(
            encoder=SasrecConfig(width=50, max_length=200),
            components=ComponentsConfig(width=128, query_hidden=0),
            similarity=DotProductConfig(temperature=0.0404),
            loss=ContrastiveConfig(kind="sampled_softmax", pointwise_weight=0.0),
            negatives=UniformNegatives(num_items=128, shared_by="history"),
        ),
        training=TrainingConfig(
            num_steps=18_875, batch_size=32, learning_rate=2.13e-3, weight_decay=0.0, validate_every=1887
        ),
    )


@Recipe
def ml1m_sasrec_mol_long() -> RunConfig:
    """Encoder of the recipe without mixture under the paper's 8 x 4 components, for as long."""
    long = ml1m_sasrec_long()
    return replace(long, name="ml1m-sasrec-mol-long", training=replace(long.training, learning_rate=1e-3)).with_family(
        components=ComponentsConfig(width=64, query_hidden=0), similarity=_long_mixture(temperature=0.05)
    )


def _long_mixture(temperature: float) -> MixtureOfLogitsConfig:
    return MixtureOfLogitsConfig(
        num_query_components=8,
        num_item_components=4,
        gate_hidden=32,
        temperature=temperature,
        logit_dropout=0.0,
        gate_dropout=0.2,
    )


HSTU = HstuConfig(width=64, num_blocks=4, num_heads=2, max_length=50)


@Recipe
def ml1m_hstu() -> RunConfig:
    """HSTU in place of SASRec, under a dot product."""
    return replace(ml1m_sasrec(), name="ml1m-hstu").with_family(encoder=HSTU)


@Recipe
def ml1m_hstu_mol() -> RunConfig:
    """HSTU under the mixture of `ml1m_sasrec_mol`."""
    return replace(ml1m_sasrec_mol(), name="ml1m-hstu-mol").with_family(encoder=HSTU)


@Recipe
def ml1m_hstu_long() -> RunConfig:
    """HSTU under a tuned dot product, for fifty epochs."""
    return _hstu_long(ml1m_sasrec_long(), "ml1m-hstu-long", learning_rate=2.13e-3)


@Recipe
def ml1m_hstu_mol_long() -> RunConfig:
    """Encoder of the recipe without mixture under a tuned mixture, for as long."""
    own = _hstu_long(ml1m_sasrec_mol_long(), "ml1m-hstu-mol-long", learning_rate=2.52e-3)
    return own.with_family(similarity=_long_mixture(temperature=0.0764))


def _hstu_long(of_sasrec: RunConfig, name: str, learning_rate: float) -> RunConfig:
    training = replace(of_sasrec.training, num_steps=9437, validate_every=943, learning_rate=learning_rate)
    encoder = HstuConfig(width=50, num_blocks=8, num_heads=2, max_length=200)
    return replace(of_sasrec, name=name, training=training).with_family(encoder=encoder)
