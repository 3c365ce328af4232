"""The command line: `main` parses arguments and turns errors into exit codes; each command is a class of fields.

| member       | commands                                                          |
|--------------|-------------------------------------------------------------------|
| `stages`     | quickstart, train, publish, evaluate, calibrate                   |
| `pipeline`   | pipeline                                                          |
| `tune`       | tune                                                              |
| `encode`     | encode                                                            |
| `rankers`    | train-ranker                                                      |
| `relevance`  | relevance                                                         |
| `serving`    | serve                                                             |
| `query`      | query                                                             |
| `index`      | index list, show, verify, diff, compact, rollback, import, export |
| `collecting` | index tag, untag, gc                                              |
| `items`      | items add, upsert, delete                                         |
| `refresh`    | refresh                                                           |
| `plan`       | plan                                                              |
| `inspect`    | inspect                                                           |
| `keys`       | new-key                                                           |

`inspecting` and `planning` compute what two of them print, `tuning` and `tuning_searches` what `tune` does, `diffing`
what `index diff` does; `rendering` and `plotting` make what people look at, `quickstart` is the tour. `serving_single`
is `serve --single`, `until_stopped` what both ways to serve do until a signal.
"""

from typing import Any, Protocol


class Command(Protocol):
    """A command: its arguments are its fields."""

    def run(self) -> dict[str, Any] | None:
        """Run the command and print as it goes. Returns the fields of a job's last line, as JSON values."""
        ...
