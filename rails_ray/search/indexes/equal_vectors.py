"""A graph of distinct vectors, each of which stands for all items that have it.

Many copies of one vector fill all links of a graph's node with each other, so that no walk leaves them and none from
elsewhere meets them, however wide its beam. So a vector enters once, and its items are listed again in each answer.

Axes: X items, U distinct vectors, b lines (queries), n places of a list.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

from rails_ray.schema.search_params import SearchParams
from rails_ray.search.indexes.probing import Floats, KindSearch, Only, PreparedQueries, Rows

DIGEST_BYTES = 16  # of a vector: two of 10^9 have one digest with a probability of 10^-21


class DistinctVectors:
    """Numbers distinct vectors in the order in which they come, and knows the number of each item's."""

    def __init__(self) -> None:
        self._numbers = dict[bytes, int]()
        self._of_items = list[int]()

    def new(self, codes: NDArray[np.uint8]) -> Rows:
        """The lines of vectors that no earlier one equals.

        Args:
            codes: what is stored of each vector, in bytes.
        """
        lines = []
        for line, code in enumerate(codes):
            num_before = len(self._numbers)
            digest = hashlib.blake2b(code.tobytes(), digest_size=DIGEST_BYTES).digest()
            self._of_items.append(self._numbers.setdefault(digest, num_before))
            if len(self._numbers) > num_before:
                lines.append(line)
        return np.array(lines, np.int64)

    @property
    def node_of(self) -> Rows | None:
        """The number of each item's vector [X]; None if all are distinct."""
        is_distinct = len(self._numbers) == len(self._of_items)
        return None if is_distinct else np.array(self._of_items, np.int64)


class ItemsOfNodes:
    """The items that have each vector.

    Args:
        node_of: the number of each item's vector [X]; -1 of items that are left out.
    """

    def __init__(self, node_of: Rows, num_nodes: int) -> None:
        self.rows = np.argsort(node_of, kind="stable")[np.count_nonzero(node_of < 0) :]
        self.sizes = np.bincount(node_of[node_of >= 0], minlength=num_nodes)
        self.starts = self.sizes.cumsum() - self.sizes

    def listed(self, scores: Floats, nodes: Rows, n: int) -> tuple[Floats, Rows]:
        """The n best items by lists of nodes: scores descending, equal ones by the lower row, row -1 at places that
        hold none. Where each vector has one item, equal ones are in any order."""
        if nodes.shape[1] == n and (nodes >= 0).all() and (self.sizes[nodes] == 1).all():
            return scores, self.rows[self.starts[nodes]]
        found = np.full((len(nodes), n), -np.inf, np.float32), np.full((len(nodes), n), -1, np.int64)
        for line, own in enumerate(nodes):
            own = own[own >= 0]
            sizes, of_nodes = self.sizes[own], scores[line, : len(own)]
            last = np.searchsorted(sizes.cumsum(), n)  # the node that fills the list
            if last < len(own):
                end = np.count_nonzero(of_nodes >= of_nodes[last])  # with those that score as it does
                own, sizes, of_nodes = own[:end], sizes[:end], of_nodes[:end]
            place = np.arange(sizes.sum()) + np.repeat(self.starts[own] - (sizes.cumsum() - sizes), sizes)
            rows, of_rows = self.rows[place], np.repeat(of_nodes, sizes)
            order = np.lexsort((rows, -of_rows))[:n]
            found[0][line, : len(order)], found[1][line, : len(order)] = of_rows[order], rows[order]
        return found


class OfDistinct:
    """The contract of `KindSearch`, by an index of distinct vectors.

    Args:
        node_of: the number of each item's vector in it [X].
    """

    def __init__(self, kind: KindSearch, node_of: Rows, num_nodes: int) -> None:
        self.name, self.growth, self.runs_on_gpu = kind.name, kind.growth, False
        self.kind = kind
        self.node_of = node_of
        self.num_nodes = num_nodes
        self.items = ItemsOfNodes(node_of, num_nodes)

    def num_products(self, num_left: int, params: SearchParams) -> float:
        """The contract of `KindSearch`, for as large a share of the nodes."""
        return self.kind.num_products(num_left * self.num_nodes // len(self.node_of), params)

    def ask(self, queries: Floats, params: SearchParams) -> PreparedQueries:
        """The contract of `KindSearch`; a node is passed over if all of its items are."""
        prepared = self.kind.ask(queries, params)

        def best(lines: Rows, n: int, only: Only | None) -> tuple[Floats, Rows]:
            items = self.items
            if only is not None:
                items = ItemsOfNodes(np.where(only.is_there, self.node_of, -1), self.num_nodes)
                only = Only.of(items.sizes > 0)
            return items.listed(*prepared.best(lines, min(n, self.num_nodes), only), n)

        return prepared._replace(best=best)
