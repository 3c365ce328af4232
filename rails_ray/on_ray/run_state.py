"""The state of a run's pieces: which may start now, what progress to show, and what went wrong.

No Ray here: this module decides, and the driver acts.
"""

from collections.abc import Mapping, Sequence

from rails_ray.training.piece import Piece, steps_of

MOST_SHOWN = 3  # pieces at work that a line of progress names


class RunState:
    """Which pieces of a run are done, waiting, or failed. The others are at work.

    Args:
        done: names of the pieces that have already finished.
    """

    def __init__(self, pieces: Sequence[Piece], done: Sequence[str] = ()) -> None:
        self.pieces = pieces
        self.done = list(done)
        self.waiting = [piece for piece in pieces if piece.name not in done]
        self.failed = dict[str, str]()  # reason by piece

    @property
    def is_one(self) -> bool:
        """Return whether the run is one piece, without a name."""
        return [piece.name for piece in self.pieces] == [""]

    def ready(self) -> list[Piece]:
        """The waiting pieces whose predecessors are done."""
        return [piece for piece in self.waiting if set(piece.after) <= set(self.done)]

    def seen(self, shown: Mapping[str, tuple[int, int, str]]) -> tuple[int, int, str]:
        """The progress of all pieces as one.

        Args:
            shown: (steps done, steps in all, a short note) by the name of each piece that has reported.
        """
        begun = {piece.name: shown[piece.name] for piece in self.pieces if piece.name in shown}
        steps = sum(
            steps_of(piece) if piece.name in self.done else begun.get(piece.name, (0, 0, ""))[0]
            for piece in self.pieces
        )
        total = sum(map(steps_of, self.pieces))
        if self.is_one:
            return begun[""] if begun and not self.done else (steps, total, "done" if self.done else "starting")
        at_work = [name for name in begun if name not in self.done and name not in self.failed]
        notes = [f"{name} {begun[name][2]}" for name in at_work[:MOST_SHOWN]]
        more = [f"{len(at_work) - MOST_SHOWN} more"] if len(at_work) > MOST_SHOWN else []
        text = ", ".join([*notes, *more])
        return steps, total, f"{len(self.done)} of {len(self.pieces)} pieces" + (text and f": {text}")

    def failure_message(self, run: str) -> str:
        """Which pieces failed and why, and which could not start without them."""
        if self.is_one:
            return f"training of run {run!r} must end with a model, got: {self.failed['']}"
        names_of: dict[str, list[str]] = {}
        for piece in self.pieces:
            if piece.name in self.failed:
                names_of.setdefault(self.failed[piece.name], []).append(piece.name)
        for piece in self.waiting:
            missing = ", ".join(name for name in piece.after if name not in self.done)
            names_of.setdefault(f"it comes after {missing}", []).append(piece.name)
        reasons = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in names_of.items())
        return (
            f"all {len(self.pieces)} pieces of run {run!r} must be trained, got {len(self.done)}; {reasons}: "
            "train it again under the same name for the rest"
        )
