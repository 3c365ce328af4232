"""How much a request may ask for."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Limits:
    """
    max_queries: most queries in a request.
    max_answered_items: most queries times k in a request.
    deadline_s: latest deadline of a request, and that of one without its own; None for none.
    """

    max_queries: int = 1024
    max_answered_items: int = 100_000
    deadline_s: float | None = None

    def check_queries(self, num_queries: int) -> None:
        """Raises ValueError if there are too many."""
        if num_queries > self.max_queries:
            raise ValueError(f"queries must have a length of at most {self.max_queries}, got {num_queries}")
