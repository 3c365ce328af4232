"""A graph of distinct vectors, each of which stands for all items that have it.

Many copies of one vector fill all links of a graph's node with each other, so that no walk leaves them and none from
elsewhere meets them, however wide its beam. So a vector is linked once, and its items are listed again in each answer.

In fp32 the items' vectors and the graph's can be one array in memory if nodes have the numbers of items. So copies are
nodes without links, unless the room for these links is more than that of the distinct vectors. Then, and in other
storage, the graph holds distinct vectors alone.

Axes: X items, U distinct vectors, d width of a vector, b lines (queries), n places of a list.
"""

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rails_ray.kernels.faiss_library import faiss_library
from rails_ray.schema.search_params import SearchParams
from rails_ray.search.indexes.probing import Floats, KindSearch, Only, PreparedQueries, Rows

LINE_BYTES = 64  # a file ends with whole lines, so that the vectors at the end of a graph keep their place in memory
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


def with_copies(index: Any, node_of: Rows) -> bytes:
    """Add copies to a graph, as nodes without links at the rows of their items, where that saves memory. Return what
    follows the graph in its file. A copy gets the bits of the first: -0 becomes 0, or 0 becomes -0.

    Args:
        index: graph of FAISS, of distinct vectors [U] in the order of their first items.
        node_of: the number of each item's vector in it [X].
    """
    faiss = faiss_library()
    stored, graph = faiss.downcast_index(index.storage), index.hnsw
    num_items, num_distinct = len(node_of), int(index.ntotal)
    num_links, num_numbers = (num_items - num_distinct) * graph.nb_neighbors(0), num_distinct * index.d
    if num_links > num_numbers or not isinstance(stored, faiss.IndexFlat):
        return node_of.tobytes()
    firsts = np.unique(node_of, return_index=True)[1]
    copies = np.setdiff1d(np.arange(num_items), firsts)
    codes = faiss.rev_swig_ptr(stored.codes.data(), stored.codes.size()).reshape(num_distinct, -1)
    stored.add_sa_codes(codes[node_of[copies]])
    for _ in copies:
        graph.levels.push_back(1)
    graph.prepare_level_tab(len(copies), True)
    index.ntotal = num_items
    index.permute_entries(np.argsort(np.concatenate([firsts, copies])))
    linked_of = firsts[node_of]
    return linked_of.tobytes() + bytes(-linked_of.nbytes % LINE_BYTES)


def linked_nodes(numbers: Rows, num_nodes: int) -> Rows | None:
    """The linked node of each item's vector [X]; None if the numbers are damaged.

    Args:
        numbers: what follows a graph in its file.
        num_nodes: nodes of the graph, as many as distinct vectors or as items.
    """
    if np.array_equal(np.unique(numbers), np.arange(num_nodes)):
        return numbers
    linked_of, rest = numbers[:num_nodes], numbers[num_nodes:]
    if len(numbers) != num_nodes + -num_nodes % (LINE_BYTES // numbers.itemsize) or rest.any():
        return None
    is_first = linked_of == np.arange(num_nodes)
    is_there = (linked_of >= 0) & (linked_of <= np.arange(num_nodes))
    return linked_of if is_there.all() and is_first[linked_of].all() else None


class ItemsOfNodes:
    """The items that have each vector.

    Args:
        node_of: the number of each item's linked node [X]; -1 of items that are left out.
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
    """The contract of `KindSearch`, by a graph that links distinct vectors.

    Args:
        node_of: the number of each item's linked node [X].
        num_nodes: nodes, linked or not.
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
        return self._of_items(self.kind.ask(queries, params))

    def _of_items(self, prepared: PreparedQueries) -> PreparedQueries:
        def best(lines: Rows, n: int, only: Only | None) -> tuple[Floats, Rows]:
            items = self.items
            if only is not None:
                items = ItemsOfNodes(np.where(only.is_there, self.node_of, -1), self.num_nodes)
            if only is not None or prepared.is_exhaustive:  # which meets nodes without links too
                only = Only.of(items.sizes > 0)
            return items.listed(*prepared.best(lines, min(n, self.num_nodes), only), n)

        wider = prepared.wider
        return prepared._replace(best=best, wider=None if wider is None else lambda: self._of_items(wider()))
