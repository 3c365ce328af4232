"""What each command of `rails-ray` takes and does; `cli` parses them and turns errors into exit codes.

| member      | commands                                                          |
|-------------|-------------------------------------------------------------------|
| `stages`    | quickstart, train, publish, evaluate, calibrate, pipeline         |
| `tune`      | tune                                                              |
| `encode`    | encode                                                            |
| `rankers`   | train-ranker                                                      |
| `relevance` | relevance                                                         |
| `serving`   | serve                                                             |
| `query`     | query                                                             |
| `index`     | index list, show, verify, rollback, import, export                |
| `plan`      | plan                                                              |
| `inspect`   | inspect                                                           |
"""

from typing import Any, Protocol


class Command(Protocol):
    """A command: its arguments are its fields."""

    def run(self) -> dict[str, Any] | None:
        """Run the command and print as it goes. Returns the fields of a job's last line, as JSON values."""
        ...
