"""Small inputs that several tests share."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.nn.functional as F

from rails_ray.config import RunConfig
from rails_ray.data.batch import PairSampler
from rails_ray.data.text import Queries
from rails_ray.encoders.components import ComponentsConfig
from rails_ray.encoders.model import Model
from rails_ray.encoders.two_tower import TwoTowerConfig
from rails_ray.similarities.dot_product import DotProductConfig
from rails_ray.similarities.mol import MixtureOfLogits, MixtureOfLogitsConfig
from rails_ray.similarities.states import ItemState, QueryState
from rails_ray.storage.parquet import item_part
from rails_ray.training.loop import TrainingConfig


def random_states(
    num_queries: int, num_items: int, *, p_q: int = 2, p_x: int = 3, width: int = 4, seed: int = 0
) -> tuple[QueryState, ItemState]:
    """Encoded queries and items with components of length 1."""
    generator = torch.Generator().manual_seed(seed)

    def unit(*shape: int) -> torch.Tensor:
        return F.normalize(torch.randn(*shape, generator=generator), dim=-1)

    components = unit(num_items, p_x, width)
    return (
        QueryState(
            unit(num_queries, p_q, width),
            torch.randn(num_queries, p_q * p_x, generator=generator),
            torch.rand(num_queries, generator=generator) * 0.1 + 0.01,
        ),
        ItemState(components, torch.randn(num_items, p_q * p_x, generator=generator), components.mean(1)),
    )


def part_of(items: ItemState, first_row: int = 0) -> pa.Table:
    """An index part of these items, with ids i0, i1 and so on."""
    rows = np.arange(first_row, first_row + len(items))
    return item_part(pa.array(rows), pa.array([f"i{row}" for row in rows]), items)


def small_mixture(p_q: int = 2, p_x: int = 3, seed: int = 0) -> MixtureOfLogits:
    """A mixture of logits with random weights, in evaluation mode."""
    torch.manual_seed(seed)
    config = MixtureOfLogitsConfig(num_query_components=p_q, num_item_components=p_x, gate_hidden=5)
    return MixtureOfLogits(config).eval()


def small_config(similarity: str = "mixture") -> RunConfig:
    """A run that trains in a moment: tiny towers under a "mixture" or a "dot product", without dropout."""
    return RunConfig(
        name="small",
        encoder=TwoTowerConfig(width=8, hidden=8, num_buckets=500),
        components=ComponentsConfig(width=6, query_hidden=0, gate_hidden=5),
        similarity=DotProductConfig()
        if similarity == "dot product"
        else MixtureOfLogitsConfig(
            num_query_components=2, num_item_components=2, gate_hidden=5, logit_dropout=0.0, gate_dropout=0.0
        ),
        training=TrainingConfig(num_steps=60, batch_size=16, num_items=16, learning_rate=1e-2),
    )


COLOURED = Queries(["red", "car", "blue hat", "hat"], np.array([0, 2, 4, 5, 7]), np.array([0, 1, 0, 2, 3, 1, 3]))
THINGS = ["red car", "red hat", "blue car", "blue hat"]


def sampler_of(model: Model, **options: int) -> PairSampler:
    """Batches of a handful of queries and items."""
    defaults = {"batch_size": 6, "num_items": 4, "seed": 0}
    return PairSampler(COLOURED, model.features(COLOURED.texts), model.features(THINGS), **defaults | options)


def write_text_data(folder: Path, *, num_items: int = 60, seed: int = 0) -> Path:
    """A small text data set: items named by two words each, queries the words and pairs of them."""
    colours = ["red", "green", "blue", "white", "black", "grey", "brown", "pink", "gold", "plum"]
    things = ["car", "boat", "hat", "tree", "bird", "lamp", "stone", "shoe", "horse", "cloud", "drum", "ring"]
    names = [f"{colour} {thing}" for colour in colours for thing in things][:num_items]
    texts = sorted({*names, *(word for name in names for word in name.split())})
    generator = torch.Generator().manual_seed(seed)
    splits = ["train", "valid", "test", *["train"] * 7]
    split = [splits[int(torch.randint(len(splits), (), generator=generator))] for _ in texts]
    pairs = [
        (query, f"item-{row}")
        for query, text in enumerate(texts)
        for row, name in enumerate(names)
        if set(text.split()) <= set(name.split())
    ]
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(
        pa.table({"item_id": [f"item-{row}" for row in range(len(names))], "text": names}), folder / "items.parquet"
    )
    pq.write_table(
        pa.table({"query_id": list(range(len(texts))), "text": texts, "split": split}), folder / "queries.parquet"
    )
    pq.write_table(
        pa.table({"query_id": [query for query, _ in pairs], "item_id": [item for _, item in pairs]}),
        folder / "relevance.parquet",
    )
    return folder
