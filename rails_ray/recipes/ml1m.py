"""MovieLens-1M: what a user watches next, from the order of what they watched. Twenty epochs for two CPU cores.

Source: RAILS, Table 3 and Appendix A.4.1.
Differs from the source: temperature .03 instead of .05, which is better for both in so few epochs; a batch shares its
negatives, so more of them cost little; histories of 50 items, not 200 (`--encoder.max-length 200` on a GPU).
Measurements of this and other choices are in jobs/benches/LOG.md.
"""

from dataclasses import replace

from rails_ray.config import RunConfig
from rails_ray.config.dual_encoder import DualEncoderConfig
from rails_ray.encoders.components import ComponentsConfig
from rails_ray.encoders.hstu import HstuConfig
from rails_ray.encoders.sasrec import SasrecConfig
from rails_ray.similarities.dot_product import DotProductConfig
from rails_ray.similarities.mol import MixtureOfLogitsConfig
from rails_ray.training.loop import TrainingConfig
from rails_ray.training.objectives import ContrastiveConfig


def ml1m_sasrec() -> RunConfig:
    """SASRec under a dot product."""
    return RunConfig(
        name="ml1m-sasrec",
        family=DualEncoderConfig(
            encoder=SasrecConfig(width=64, num_blocks=2, num_heads=1, max_length=50),
            components=ComponentsConfig(width=64, query_hidden=0, gate_hidden=64),
            similarity=DotProductConfig(temperature=0.03),
            loss=ContrastiveConfig(kind="sampled_softmax", pointwise_weight=0.0),
        ),
        training=TrainingConfig(num_steps=3780, batch_size=32, learning_rate=2e-3, validate_every=378, patience=3),
    )


def ml1m_sasrec_mol() -> RunConfig:
    """The same backbone under a Mixture of Logits of 4 x 2 components, each as wide as the dot product's vectors."""
    return replace(ml1m_sasrec(), name="ml1m-sasrec-mol").with_family(
        similarity=MixtureOfLogitsConfig(
            # Dropout is for longer runs, and on a CPU it costs as much as the rest of the mixture.
            num_query_components=4,
            num_item_components=2,
            gate_hidden=16,
            temperature=0.03,
            logit_dropout=0.0,
            gate_dropout=0.0,
        ),
    )


HSTU = HstuConfig(width=64, num_blocks=4, num_heads=2, max_length=50)


def ml1m_hstu() -> RunConfig:
    """HSTU in place of SASRec, under a dot product."""
    return replace(ml1m_sasrec(), name="ml1m-hstu").with_family(encoder=HSTU)


def ml1m_hstu_mol() -> RunConfig:
    """HSTU under the mixture of `ml1m_sasrec_mol`."""
    return replace(ml1m_sasrec_mol(), name="ml1m-hstu-mol").with_family(encoder=HSTU)
