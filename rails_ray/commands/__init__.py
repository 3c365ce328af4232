"""What each command of `rails-ray` takes and does; `cli` parses them and turns errors into exit codes.

| member    | commands                                                          |
|-----------|-------------------------------------------------------------------|
| `stages`  | quickstart, train, encode, publish, evaluate, calibrate, pipeline |
| `serving` | serve, query                                                      |
| `index`   | index list, show, verify, rollback                                |
"""

from typing import Any, Protocol


class Command(Protocol):
    """Arguments as fields; what they ask for, done."""

    def run(self) -> dict[str, Any] | None:
        """Do it, printing as it goes; what a job leaves as its last line: JSON values by name."""
        ...
