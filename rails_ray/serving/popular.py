"""The most popular items of a version, for queries of which its model knows nothing."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rails_ray.errors import UnsupportedError
from rails_ray.families.version import Version
from rails_ray.item_ids import ItemId
from rails_ray.schema.queries import QueryInput
from rails_ray.schema.responses import CertificateResult, QueryResult
from rails_ray.storage.manifest import POPULAR
from rails_ray.storage.parquet import read_plain

UNSCORED = CertificateResult(is_exact=False, gap=None, reason="the most popular items, as the query is not known")


@dataclass(frozen=True)
class Popular:
    """
    item_ids, titles, shares: items, most popular first, and their shares of all interactions.
    num_items: items of the version, which may be more.
    """

    item_ids: Sequence[ItemId]
    titles: Sequence[str] | None
    shares: Sequence[float]
    num_items: int

    @staticmethod
    def read(version: Version) -> "Popular":
        """Read what encoding has stored.

        Raises:
            UnsupportedError: if the version does not store it.
        """
        described = version.described
        if not described.has_file(POPULAR):
            raise UnsupportedError(
                f"fallback needs a version that stores its popular items, got version {version.name} without: encode "
                "a new one, of a model whose queries are histories"
            )
        table = read_plain(io.BytesIO(version.file(POPULAR)))
        titles = table["title"].to_pylist() if "title" in table.column_names else None
        return Popular(table["item_id"].to_pylist(), titles, table["share"].to_pylist(), described.num_live)

    def result(self, k: int, query: QueryInput, fields: Mapping[str, Any] | None = None) -> QueryResult:
        """The k most popular items that a query may find.

        Args:
            fields: attributes of the items that a filter passes, by id in decimal digits; None if all pass, and none
                are wanted.
        """
        excluded = {str(item_id) for item_id in query.exclude}  # as integers may be given in digits
        included = None if query.include is None else {str(item_id) for item_id in query.include}
        rows = [
            row
            for row, own in enumerate(map(str, self.item_ids))
            if own not in excluded and (included is None or own in included) and (fields is None or own in fields)
        ]
        num_left, kept = len(rows), rows[:k]
        of_items = None if fields is None else [fields[str(self.item_ids[row])] for row in kept]
        return QueryResult(
            items=[self.item_ids[row] for row in kept],
            titles=None if self.titles is None else [self.titles[row] for row in kept],
            fields=None if of_items is None or None in of_items else of_items,
            scores=[self.shares[row] for row in kept],
            threshold=None,
            num_kept=len(kept),
            num_searched=num_left,
            num_scored=0,
            certificate=UNSCORED,
            is_truncated=num_left > k,
            is_short=len(kept) < k and self.num_items > len(self.item_ids),
            is_known=False,
        )
