"""Keep the current version up to date with data that grow, by a command that may run every few minutes."""

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from rails_ray.cli.base import AllowsCode, Stored, errors, out
from rails_ray.cli.items import compacted_if_due, facts_of, say_change
from rails_ray.cli.stages import data_config
from rails_ray.errors import GateError

if TYPE_CHECKING:
    from rails_ray.storage.described import Manifest
    from rails_ray.storage.filesystem import Storage


@dataclass(frozen=True, kw_only=True)
class Refresh(AllowsCode, Stored):
    """Add the items of new and changed files to the current version, in place of items that it has under the same ids.

    It may run every few minutes and be killed at any time. A file that was read is not read again, unless it changes.

    Args:
        folder: Data whose items to add. If left out: the version's data.
        items: File, folder or pattern of the items alone, in place of --folder.
        zero_vectors: What becomes of items with a vector of zeros. refuse: nothing is added; keep: they are found last.
        max_churn: Keep the former version if more than this share of a query's k best items would change, on average
            over validation queries, or if that cannot be measured.
        k: Length of the lists that --max-churn judges.
        recalibrate_beyond: Calibrate the new version, before --max-churn judges it, where more than this share of the
            items has changed since the calibration was made, and the version's data have queries for it. None: never.
        compact: Write the version anew where deltas and deleted items have become many: auto, or never.
    """

    folder: str | None = None
    items: str | None = None
    zero_vectors: Literal["refuse", "keep"] = "refuse"
    max_churn: float | None = None
    k: int = 10
    recalibrate_beyond: float | None = 0.1
    compact: Literal["auto", "never"] = "auto"

    def run(self) -> dict[str, Any]:
        if self.max_churn is not None and not 0 <= self.max_churn <= 1:
            raise ValueError(f"--max-churn must be from 0 to 1, got {self.max_churn:g}")
        if self.recalibrate_beyond is not None and not self.recalibrate_beyond >= 0:
            raise ValueError(f"--recalibrate-beyond must be at least 0, or None, got {self.recalibrate_beyond:g}")
        with errors.status("loading torch"):
            from rails_ray.cli import rendering
            from rails_ray.counting import shown
            from rails_ray.families.refreshing import refresh
            from rails_ray.storage.filesystem import Storage

        store = Storage(self.storage)
        with rendering.bar(out, "refresh") as on_progress, shown(on_progress):
            refreshed = refresh(
                store,
                data_config(self.folder, self.items, None, self.zero_vectors),
                allow_code=self.allow_code,
                recalibrate_beyond=self.recalibrate_beyond,
                approve=lambda made: self.check_churn(store, made),
            )
        for note in refreshed.notes:
            logging.getLogger("rails_ray.families.encoding").warning(note)
        files = f"{refreshed.num_files:,} new file{'' if refreshed.num_files == 1 else 's'}"
        if refreshed.change is None:
            out.print(f"{files}: nothing to add", highlight=False)
            return {"num_files": refreshed.num_files}
        out.print(files, highlight=False)
        say_change(refreshed.change)
        if refreshed.num_calibrated:
            out.print(f"calibrated anew: {refreshed.num_calibrated}", highlight=False)
        version = compacted_if_due(self, refreshed.change, self.compact == "auto")
        own = {"num_files": refreshed.num_files, "num_calibrated": refreshed.num_calibrated}
        return {**own, **facts_of(version, refreshed.change)}

    def check_churn(self, store: "Storage", made: "Manifest") -> None:
        """Compare a version with its parent.

        Raises:
            GateError: if it answers too many queries otherwise.
        """
        if self.max_churn is None:
            return
        from rails_ray.cli.diffing import diff_versions
        from rails_ray.training.evaluation.gates import churn_objection

        assert made.parent is not None
        found = diff_versions(store, made.parent, made.version, k=self.k, allow_code=self.allow_code)
        churn = None if found.answers.churn is None else found.answers.churn[self.k]
        reason = churn_objection(self.max_churn, self.k, churn, found.answers.reason)
        if reason is not None:
            raise GateError(f"version {made.version} must answer as {made.parent} does to become current: {reason}")
