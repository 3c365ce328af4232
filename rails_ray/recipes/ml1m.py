"""MovieLens-1M: what a user watches next, from the order of what they watched.

Source: RAILS, Table 3 and Appendix A.4.1: 128 negatives, temperature .05, AdamW. Histories of 50 items and small
batches are for two CPU cores; on a GPU take `--encoder.max-length 200` as the paper does.
"""

from dataclasses import replace

from rails_ray.config import LossConfig, RunConfig
from rails_ray.encoders.components import ComponentsConfig
from rails_ray.encoders.sasrec import SasrecConfig
from rails_ray.similarities.dot_product import DotProductConfig
from rails_ray.similarities.mol import MixtureOfLogitsConfig
from rails_ray.training.loop import TrainingConfig


def ml1m_sasrec() -> RunConfig:
    """SASRec under a dot product."""
    return RunConfig(
        name="ml1m-sasrec",
        encoder=SasrecConfig(width=64, num_blocks=2, num_heads=1, max_length=50),
        components=ComponentsConfig(width=64, query_hidden=0),
        similarity=DotProductConfig(temperature=0.05),
        loss=LossConfig(kind="sampled_softmax", pointwise_weight=0.0),
        training=TrainingConfig(
            num_steps=2000, batch_size=128, num_items=128, learning_rate=2e-3, validate_every=100, patience=5
        ),
    )


def ml1m_sasrec_mol() -> RunConfig:
    """SASRec under a Mixture of Logits."""
    return replace(
        ml1m_sasrec(),
        name="ml1m-sasrec-mol",
        components=ComponentsConfig(width=32, query_hidden=256, gate_hidden=64),
        similarity=MixtureOfLogitsConfig(num_query_components=4, num_item_components=4, gate_hidden=32),
    )
