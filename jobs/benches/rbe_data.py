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
import random
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

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

    from rails_ray.relevance.rankers.molecules import in_space

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
    from rails_ray.relevance.rankers.syntax_trees import tree_of

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


if __name__ == "__main__":
    name, folder = sys.argv[1:]
    write(name, Path(folder), {"molecules": molecules, "syntax_trees": syntax_trees}[name]())
