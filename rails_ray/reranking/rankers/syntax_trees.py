"""A heavy ranker of programs: how far apart the syntax trees of two Python functions are, by apted.

    score = 1 - distance / (nodes of one + nodes of the other) in [0, 1]

distance counts nodes to insert, to delete and to rename; a node is the name of its kind.

Source: Pawlik and Augsten, Tree edit distance: Robust and memory-efficient (2016).
"""

import ast
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from rails_ray.optional import optional
from rails_ray.reranking.rankers import RANKERS, Candidate

MOST_KEPT = 2**14  # trees in memory


class Tree(NamedTuple):
    """A node, as apted reads it."""

    name: str
    children: tuple["Tree", ...]

    @property
    def size(self) -> int:
        """Nodes, this one included."""
        return 1 + sum(child.size for child in self.children)


class SyntaxTreeRanker:
    """The contract of `HeavyRanker`.

    Args:
        field: of queries and items: Python source.

    Raises:
        UnsupportedError: if apted is not installed.
    """

    def __init__(self, field: str = "text") -> None:
        optional("apted", needed_by="this ranker", package="apted", install=RANKERS)
        self.field = field

    def __call__(self, query: Mapping[str, Any], candidates: Sequence[Candidate]) -> list[float]:
        query_tree = tree_of(str(query[self.field]))
        return [likeness(query_tree, tree_of(str(candidate.fields[self.field]))) for candidate in candidates]


def likeness(one: Tree, other: Tree) -> float:
    """The score of two trees; 1 for equal ones."""
    from apted import APTED

    return 1 - float(APTED(one, other).compute_edit_distance()) / (one.size + other.size)


@lru_cache(maxsize=MOST_KEPT)
def tree_of(source: str) -> Tree:
    """The syntax tree of a text.

    Raises:
        ValueError: if it is no Python.
    """
    try:
        return _tree(ast.parse(source))
    except (SyntaxError, RecursionError) as error:
        raise ValueError(f"a program must be Python, got: {str(error).partition(chr(10))[0]}") from None


def _tree(node: ast.AST) -> Tree:
    return Tree(type(node).__name__, tuple(_tree(child) for child in ast.iter_child_nodes(node)))
