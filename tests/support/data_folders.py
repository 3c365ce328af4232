"""Small data folders that several tests write, and real ones that no clone has."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from rails_ray.data.vectors import as_column
from rails_ray.storage.filesystem import Storage


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


def write_sequence_data(folder: Path, *, num_users: int = 30, num_items: int = 12, seed: int = 0) -> Path:
    """A small data set of sequences: each user walks round the items from some place, in small steps."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(4, 10, num_users)
    users = np.repeat(np.arange(num_users), lengths)
    steps = generator.integers(1, 3, len(users))
    items = (np.cumsum(steps) + users) % num_items
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(
        pa.table(
            {
                "user_id": [f"user-{user}" for user in users],
                "item_id": [f"item-{row}" for row in items],
                "position": np.arange(len(users)),
            }
        ),
        folder / "interactions.parquet",
    )
    pq.write_table(
        pa.table(
            {
                "item_id": [f"item-{row}" for row in range(num_items)],
                "title": [f"Item {row}" for row in range(num_items)],
            }
        ),
        folder / "items.parquet",
    )
    return folder


def real_data(name: str) -> Storage:
    """A real data set, which no clone has; a test that needs it is skipped where it is not."""
    here = Path(__file__).parents[2]
    folder = here / os.environ.get("RAILS_RAY_DATA", "../shared/data") / name
    if not folder.is_dir():
        pytest.skip(f"needs the data set {name} in {folder.parent.resolve()}: set RAILS_RAY_DATA")
    return Storage(str(folder))


def write_vector_data(folder: Path, num_vectors: int = 1, *, num_items: int = 60, width: int = 7) -> Path:
    """Items of one vector, or of several in a list of lists; each has a query for each split near the first."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    items = generator.standard_normal((num_items, num_vectors, width)).astype(np.float32)
    queries = np.tile(items[:, 0], (3, 1)) + 0.3 * generator.standard_normal((3 * num_items, width))
    rows = np.arange(3 * num_items)
    vectors = items[:, 0].tolist() if num_vectors == 1 else items.tolist()
    tables = {
        "items": {"item_id": [f"item-{row}" for row in range(num_items)], "vector": vectors},
        "queries": {
            "query_id": rows,
            "vector": as_column(queries.astype(np.float32)),
            "split": np.repeat(["train", "valid", "test"], num_items),
        },
        "relevance": {"query_id": rows, "item_id": [f"item-{row % num_items}" for row in rows]},
    }
    for name, columns in tables.items():
        pq.write_table(pa.table(columns), folder / f"{name}.parquet")
    return folder


def write_named_data(folder: Path, *, num_items: int = 60, widths: tuple[int, int] = (4, 7)) -> Path:
    """Items with a vector `title` and a vector `body`, of which every fifth lacks one; each has a query for each split
    near the first. A column `text` has their texts."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    tables: dict[str, dict[str, Any]] = {"items": {}, "queries": {}}
    for number, (name, width) in enumerate(zip(("title", "body"), widths, strict=True)):
        items = generator.standard_normal((num_items, width))
        queries = np.tile(items, (3, 1)) + 0.3 * generator.standard_normal((3 * num_items, width))
        lacks = [row % 10 == 5 * number for row in range(num_items)]
        listed = [None if own else row for row, own in zip(items.tolist(), lacks, strict=True)]
        tables["items"][name], tables["queries"][name] = listed, queries.tolist()
    rows = np.arange(3 * num_items)
    ids = [f"item-{row}" for row in range(num_items)]
    tables["items"] |= {"item_id": ids, "text": [f"text of {own}" for own in ids]}
    tables["queries"] |= {"query_id": rows, "split": np.repeat(["train", "valid", "test"], num_items)}
    tables["relevance"] = {"query_id": rows, "item_id": [ids[row % num_items] for row in rows]}
    for table, columns in tables.items():
        pq.write_table(pa.table(columns), folder / f"{table}.parquet")
    return folder


def write_number_data(folder: Path, kind: str, num_items: int = 24) -> Path:
    """Queries of which feature i stands for item i: sparse `features`, or a `vector` of them."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    splits = ["train"] * 8 + ["valid", "test"]
    answers = [item for item in range(num_items) for _ in splits]
    noise = generator.integers(num_items, size=len(answers))
    queries: dict[str, Any] = {"query_id": range(len(answers)), "split": splits * num_items}
    if kind == "features":
        distinct = [sorted({item, num_items + int(other)}) for item, other in zip(answers, noise, strict=True)]
        queries |= {"feature_indices": distinct, "feature_values": [[1.0] * len(line) for line in distinct]}
    else:
        vectors = np.eye(num_items)[answers] + 0.1 * generator.standard_normal((len(answers), num_items))
        queries["vector"] = vectors.tolist()
    pq.write_table(pa.table({"item_id": range(num_items)}), folder / "items.parquet")
    pq.write_table(pa.table({name: list(column) for name, column in queries.items()}), folder / "queries.parquet")
    pq.write_table(pa.table({"query_id": range(len(answers)), "item_id": answers}), folder / "relevance.parquet")
    return folder
