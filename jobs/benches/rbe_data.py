"""The data sets of the RBE bench, as folders of texts that `rails-ray relevance` reads: items, and queries in splits.

| data set     | a query is                   | an item is            | items  | queries (train, valid, test) |
|--------------|------------------------------|-----------------------|--------|------------------------------|
| molecules    | a molecule of NCI's, SMILES  | another one           | 2,000  | 280, 40, 80                  |
| syntax_trees | a function of Python's own   | another one           | 1,000  | 140, 20, 40                  |
| tldr         | what a command does          | the page of a command | 2,000  | 700, 100, 200                |
| scifact      | a claim                      | an abstract           | 2,000  | 200, 30, 70                  |
| ml_100k      | a user                       | a film                | 1,682  | 643, 100, 200                |
| ml_1m        | a user                       | a film                | 3,706  | 4,840, 200, 1,000            |

Molecules come with rdkit's wheel, functions with Python. The others are read from a folder of their names.
"""

import ast
import os
import random
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import scipy.sparse
import scipy.sparse.linalg

SEED = 0
FEWEST_ATOMS, MOST_ATOMS = 12, 40  # of a molecule, hydrogens left out
ELEMENTS = {"C", "N", "O", "S", "P", "F", "Cl", "Br", "I"}
FEWEST_NODES, MOST_NODES = 20, 90  # of a function's syntax tree


class Split(NamedTuple):
    """How many queries of each split, and items."""

    train: int
    valid: int
    test: int
    items: int


SPLITS = {
    "molecules": Split(280, 40, 80, 2000),
    "syntax_trees": Split(140, 20, 40, 1000),
    "tldr": Split(700, 100, 200, 2000),
    "scifact": Split(200, 30, 70, 2000),
    "ml_100k": Split(643, 100, 200, 1682),
    "ml_1m": Split(4840, 200, 1000, 3706),
}


def write(name: str, folder: Path, texts: Sequence[str]) -> None:
    """A data set whose queries and items are distinct texts, the first of which become the queries."""
    sizes = SPLITS[name]
    asked = queries_of(sizes, list(texts[: sizes.train + sizes.valid + sizes.test]))
    items = texts[len(asked["query_id"]) :][: sizes.items]
    assert len(items) == sizes.items, f"{name} must have {sizes.items} items, got {len(items)}"
    save(folder, {"item_id": list(range(len(items))), "text": list(items)}, asked)


def queries_of(sizes: Split, texts: list[str]) -> dict[str, list[Any]]:
    """Texts as queries, in the order of the splits."""
    split = ["train"] * sizes.train + ["valid"] * sizes.valid + ["test"] * sizes.test
    return {"query_id": list(range(len(split))), "text": texts[: len(split)], "split": split}


def save(folder: Path, items: dict[str, list[Any]], queries: dict[str, list[Any]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(items), folder / "items.parquet")
    pq.write_table(pa.table(queries), folder / "queries.parquet")


def molecules() -> list[str]:
    """Molecules of one part that have a conformation in space, in a random order."""
    import rdkit
    from rdkit import Chem, rdBase

    from rails_ray.reranking.rankers.molecules import in_space

    lines = (Path(rdkit.__file__).parent / "Data" / "NCI" / "first_5K.smi").read_text().splitlines()
    with rdBase.BlockLogs():
        read = [Chem.MolFromSmiles(line.split()[0]) for line in lines if "." not in line.split()[0]]
    organic = [one for one in read if one is not None and {atom.GetSymbol() for atom in one.GetAtoms()} <= ELEMENTS]
    sized = [one for one in organic if FEWEST_ATOMS <= one.GetNumHeavyAtoms() <= MOST_ATOMS]
    found = sorted({Chem.MolToSmiles(one) for one in sized})
    random.Random(SEED).shuffle(found)
    sizes = SPLITS["molecules"]
    wanted, kept = sizes.train + sizes.valid + sizes.test + sizes.items, list[str]()
    for smiles in found:
        if len(kept) == wanted:
            break
        try:
            in_space(smiles)
        except ValueError:
            continue
        kept.append(smiles)
    return kept


def syntax_trees() -> list[str]:
    """Functions of Python's standard library, of moderate size, in a random order; no two have equal trees."""
    from rails_ray.reranking.rankers.syntax_trees import tree_of

    found = dict[Any, str]()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        source = path.read_text(errors="ignore")
        for node in ast.walk(ast.parse(source)):
            text = ast.get_source_segment(source, node) if isinstance(node, ast.FunctionDef) else None
            if text is None:
                continue
            text = ast.unparse(ast.parse(ast.unparse(node)))
            tree = tree_of(text)
            if FEWEST_NODES <= tree.size <= MOST_NODES:
                found.setdefault(tree, text)
    texts = list(found.values())
    random.Random(SEED).shuffle(texts)
    return texts


def texts(name: str, folder: Path, source: Path) -> None:
    """TLDR or SciFact: some of the items, those that answer the queries among them."""
    sizes = SPLITS[name]
    read = {
        table: pq.read_table(source / f"{table}.parquet").to_pandas() for table in ("items", "queries", "relevance")
    }
    draw = np.random.default_rng(SEED)
    asked = read["queries"].iloc[draw.permutation(len(read["queries"]))[: sizes.train + sizes.valid + sizes.test]]
    answers = read["relevance"][read["relevance"]["query_id"].isin(asked["query_id"])]["item_id"].unique()
    others = np.setdiff1d(draw.permutation(read["items"]["item_id"]), answers, assume_unique=True)
    kept = read["items"][read["items"]["item_id"].isin([*answers, *others[: sizes.items - len(answers)]])]
    queries = queries_of(sizes, asked["text"].tolist()) | {"query_id": asked["query_id"].tolist()}
    save(folder, {name: kept[name].tolist() for name in ("item_id", "title", "text")}, queries)


def cross_encoder(name: str, folder: Path, source: Path) -> None:
    """A cross-encoder for TLDR's or SciFact's queries that the bench does not ask.

    SciFact has few claims: titles of abstracts train it too.
    """
    from rails_ray.data.dataset import Texts
    from rails_ray.data.forms import FORMS
    from rails_ray.data.queries import ItemLists, Queries
    from rails_ray.data.sources import Sources
    from rails_ray.modules.schedule import TrainingConfig
    from rails_ray.reranking.rankers.cross_encoder import CrossEncoderConfig
    from rails_ray.training.rankers import train_cross_encoder

    held_out = set(pq.read_table(folder / "queries.parquet")["text"].to_pylist())
    read = FORMS["text"].read(Sources(str(source)))
    train = read.queries["train"]
    rows = np.flatnonzero([text not in held_out for text in train.inputs])
    own = Queries(train.inputs.take(rows), train.relevant.take(rows))
    if name == "scifact":
        assert read.titles is not None
        answers = [*own.relevant, *([row] for row in range(len(read.item_ids)))]
        own = Queries(Texts([*own.inputs, *read.titles]), ItemLists.of(answers))
    progress = train_cross_encoder(
        replace(read, queries=read.queries | {"train": own}),
        folder / "ranker",
        CrossEncoderConfig(item_length=48 if name == "tldr" else 96),
        TrainingConfig(num_steps=3000, batch_size=32, learning_rate=1e-3),
        report=lambda done, loss: print(done, round(loss, 3), flush=True) if done % 100 == 0 else None,
    )
    print(f"{name}: {progress.seconds:.0f} s")


def films(name: str, folder: Path, source: Path) -> None:
    """MovieLens: users are the queries, named by their numbers; and boosted trees that rank films for them."""
    from rails_ray.reranking.rankers.boosted import PairFeatures, TreesConfig
    from rails_ray.training.rankers import train_boosted

    sizes = SPLITS[name]
    tables = {
        table: pq.read_table(source / f"{table}.parquet").to_pandas() for table in ("interactions", "items", "users")
    }
    seen = tables["interactions"]
    items = tables["items"][tables["items"]["item_id"].isin(seen["item_id"])].reset_index(drop=True)
    users = tables["users"]
    pairs = np.stack(
        [
            pd.Index(users["user_id"]).get_indexer(seen["user_id"]),
            pd.Index(items["item_id"]).get_indexer(seen["item_id"]),
        ],
        axis=1,
    )
    by_user, by_item = _features(users, items, pairs)
    draw = np.random.default_rng(SEED)
    order = draw.permutation(len(users))
    asked = [str(users["user_id"][row]) for row in order]
    titles = (items["title"] + " " + items["genres"].map(" ".join)).tolist()
    save(folder, {"item_id": items["item_id"].tolist(), "text": titles}, queries_of(sizes, asked))
    features = PairFeatures(
        users["user_id"].astype(str).to_numpy(str), by_user, items["item_id"].astype(str).to_numpy(str), by_item, SHARED
    )
    few = pairs[draw.permutation(len(pairs))[:MOST_PAIRS]]
    train_boosted(features, few, folder / "ranker", TreesConfig())


NUM_FACTORS = 16
GENRES = 18
SHARED = GENRES + NUM_FACTORS  # numbers that mean the same of users and films
MOST_PAIRS = 100_000


def _features(users: Any, items: Any, pairs: Any) -> tuple[Any, Any]:
    """Numbers of users and films: genres and factors of the table of who saw what, then what only one of both has."""
    genres = sorted({genre for own in items["genres"] for genre in own})[:GENRES]
    of_items = np.array([[genre in own for genre in genres] for own in items["genres"]], np.float32)
    of_items = np.pad(of_items, ((0, 0), (0, GENRES - of_items.shape[1])))
    table = scipy.sparse.csr_matrix((np.ones(len(pairs), np.float32), pairs.T), (len(users), len(items)))
    left, scale, right = scipy.sparse.linalg.svds(table, NUM_FACTORS, random_state=SEED)
    seen = np.asarray(table.sum(axis=1))
    liked = (table @ of_items) / np.maximum(seen, 1)
    popular = np.log1p(np.asarray(table.sum(axis=0)).T)
    years = items["title"].str.extract(r"\((\d{4})\)")[0].astype(float).fillna(1990).to_numpy()[:, None] - 1990
    jobs = pd.get_dummies(users["occupation"]).to_numpy(np.float32)
    ages, women = users["age"].to_numpy(float)[:, None], (users["gender"] == "F").to_numpy(float)[:, None]
    by_user = np.concatenate([liked, left * np.sqrt(scale), np.log1p(seen), ages, women, jobs], axis=1)
    by_item = np.concatenate([of_items, right.T * np.sqrt(scale), popular, years], axis=1)
    return by_user.astype(np.float32), by_item.astype(np.float32)


def prepare(name: str, folder: Path, data: Path) -> None:
    """Write a data set and, where it needs one, its trained ranker in `folder`/ranker, unless they are there."""
    done = folder / "prepared"
    if done.exists():
        return
    match name:
        case "molecules":
            write(name, folder, molecules())
        case "syntax_trees":
            write(name, folder, syntax_trees())
        case "tldr" | "scifact":
            texts(name, folder, data / name)
            cross_encoder(name, folder, data / name)
        case _:
            films(name, folder, data / name.replace("_", "-"))
    done.touch()


def source() -> Path:
    """Where the data sets that are no part of a package lie."""
    return Path(os.environ.get("RAILS_RAY_DATA", "../shared/data"))


def read_genres(folder: Path) -> Any:
    """The genres of the films of a matrix, by their texts [X, G]."""
    table = pq.read_table(folder / "items.parquet")["text"].to_pylist()
    words = [set(text.rsplit(") ", 1)[-1].split()) for text in table]
    genres = sorted({word for own in words for word in own if word.isalpha() or "-" in word or "'" in word})
    return np.array([[genre in own for genre in genres] for own in words], np.float32)


if __name__ == "__main__":
    prepare(sys.argv[1], Path(sys.argv[2]), source())
