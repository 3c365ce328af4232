"""List, show, verify, compare, tag, collect and roll back index versions; vectors from files and into files."""

import json
import shlex
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import tyro

from rails_ray import counting
from rails_ray.cli.base import STORAGE, AllowsCode, Stored, errors, out, say_next
from rails_ray.cli.collecting import CollectGarbage, TagVersion, UntagVersion
from rails_ray.errors import DamagedError, GateError


@dataclass(frozen=True, kw_only=True)
class ListVersions(Stored):
    """List all versions, tags and states: current, published, encoded, encoding (maybe cut off) or damaged."""

    def run(self) -> None:
        from rails_ray.cli import rendering
        from rails_ray.storage import tags, versions
        from rails_ray.storage.filesystem import Storage

        store = Storage(self.storage)
        out.print(rendering.versions(versions.listed(store), f"versions in {self.storage}", tags.listed(store)))


@dataclass(frozen=True, kw_only=True)
class VersionSizes(Stored):
    """Show how many bytes each version takes, and how many of them no other version names.

    Args:
        json: Print JSON alone.
    """

    json: bool = False

    def run(self) -> None:
        from rails_ray.cli import rendering
        from rails_ray.storage.filesystem import Storage
        from rails_ray.storage.usage import usage

        found = usage(Storage(self.storage))
        if self.json:
            print(json.dumps({"format": 1, **asdict(found)}, indent=1))
            return
        out.print(rendering.usage(found, f"versions in {self.storage}"))


@dataclass(frozen=True, kw_only=True)
class ShowVersion(Stored):
    """Show the facts and the files of a version."""

    version: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="[VERSION]")] = None
    """A published version. If left out: the current one."""

    def run(self) -> None:
        from rails_ray.cli import rendering
        from rails_ray.storage.filesystem import Storage
        from rails_ray.storage.versions import read_manifest

        out.print(*rendering.version(read_manifest(Storage(self.storage), self.version)), sep="\n")


@dataclass(frozen=True, kw_only=True)
class VerifyVersion(Stored):
    """Check every byte of a version and of its calibrations against the stored checksums."""

    version: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="[VERSION]")] = None
    """A published version. If left out: the current one."""

    def run(self) -> None:
        from rails_ray.cli import rendering
        from rails_ray.families import calibrations
        from rails_ray.storage import live_ids, versions
        from rails_ray.storage.filesystem import Storage

        store = Storage(self.storage)
        manifest = versions.read_manifest(store, self.version)
        num_files = len(manifest.entries)
        damages = []
        with rendering.bar(out, f"verify {manifest.version}") as on_progress:
            for done, damage in enumerate(versions.damages(store, manifest), start=1):
                on_progress(done, num_files, "files")
                damages += [damage] if damage else []
        try:
            found = calibrations.read_all(store, manifest.version)
        except DamagedError as error:
            damages.append(str(error))
        if not damages and (unbalanced := live_ids.check_balance(store, manifest)) is not None:
            damages.append(unbalanced)
        for damage in damages:
            errors.print(f"rails-ray: {damage}", highlight=False, markup=False, soft_wrap=True)
        if damages:
            raise DamagedError(f"all {num_files} files of {manifest.version} must be whole, got {len(damages)} damaged")
        out.print(f"version {manifest.version}: {num_files} files, {manifest.num_live} items, all as published")
        for own in found:
            under = "" if own.filter is None else f" under the filter {own.filter}"
            said = f"calibrated at {own.created_at} on {own.positives.num_queries} queries{under}"
            out.print(said, highlight=False, markup=False, soft_wrap=True)


@dataclass(frozen=True, kw_only=True)
class DiffVersions(AllowsCode, Stored):
    """Compare two versions, published or not: items that the second has added, removed and changed, size, model, index,
    and how far both answer the same queries otherwise.

    Queries are validation queries of the second version's data or, if it has none, stored vectors of the first
    version's items.

    Args:
        first: A version.
        second: Another version. If left out: the current one.
        k: Length of the lists that --max-churn judges; churn of lists of 10 and 100 is measured too.
        max_churn: Exit with 1 if more than this share of a query's k best items differs between the versions, on
            average, or if that cannot be measured.
        json: Print JSON alone.
    """

    first: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="FIRST")]
    second: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="[SECOND]")] = None
    k: int = 10
    max_churn: float | None = None
    json: bool = False

    def run(self) -> None:
        if self.max_churn is not None and not 0 <= self.max_churn <= 1:
            raise ValueError(f"--max-churn must be from 0 to 1, got {self.max_churn:g}")
        with errors.status("loading torch"):
            from rails_ray.cli import rendering
            from rails_ray.cli.diffing import diff_versions, differences, facts_table
            from rails_ray.storage.filesystem import Storage
            from rails_ray.training.evaluation.gates import churn_objection

        store = Storage(self.storage)
        with rendering.bar(errors if self.json else out, "compare") as on_progress, counting.shown(on_progress):
            found = diff_versions(store, self.first, self.second, k=self.k, allow_code=self.allow_code)
        if self.json:
            print(json.dumps(found.to_dict(), indent=1))
        else:
            out.print(facts_table(found))
            for line in differences(found):
                out.print(line, highlight=False, soft_wrap=True, markup=False)
        if self.max_churn is None:
            return
        churn = None if found.answers.churn is None else found.answers.churn[self.k]
        reason = churn_objection(self.max_churn, self.k, churn, found.answers.reason)
        if reason is not None:
            raise GateError(f"version {found.second.version} must answer as {found.first.version} does: {reason}")


@dataclass(frozen=True, kw_only=True)
class CompactVersion(AllowsCode, Stored):
    """Write the current version anew where items were added and deleted, with new indexes. The result becomes
    current."""

    def run(self) -> dict[str, Any]:
        with errors.status("loading torch"):
            from rails_ray.cli import rendering
            from rails_ray.families.compacting import compact
            from rails_ray.storage.filesystem import Storage

        with rendering.bar(out, "compact") as on_progress, counting.shown(on_progress):
            manifest = compact(Storage(self.storage), allow_code=self.allow_code)
        out.print(f"version {manifest.version} is current: {manifest.num_live:,} items, no deltas", highlight=False)
        return {"version": manifest.version, "num_items": manifest.num_live}


@dataclass(frozen=True, kw_only=True)
class Rollback(Stored):
    """Make an earlier version current again. A running server keeps the version that it started with."""

    version: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="[VERSION]")] = None
    """A published version. If left out: the one that was current before."""

    def run(self) -> None:
        from rails_ray.storage import versions
        from rails_ray.storage.filesystem import Storage

        manifest = versions.rollback(Storage(self.storage), self.version)
        out.print(f"version {manifest.version} is current: {manifest.num_live} items, {len(manifest.parts)} parts")


@dataclass(frozen=True, kw_only=True)
class Import:
    """Make a data folder of a file of vectors: .npy, .fvecs, .fbin, .parquet, .hdf5 or .faiss.

    `rails-ray encode --recipe vector-cosine --folder FOLDER` then makes a version of it. Its --query-encoder names the
    model that made the vectors, so that a text may be a query.

    Args:
        source: The file of the items' vectors. HDF5 of ann-benchmarks has queries and their neighbors too.
        folder: The data folder to make, local or s3://bucket/prefix.
        queries: File of the queries' vectors.
        truth: File of each query's neighbors, .ivecs or .ibin: they become its relevant items.
        split: Split that all queries get: train, valid or test.
        distance: What the neighbors are nearest by, if the file does not say it: angular, euclidean or dot.
        format: Format of the source. If left out: by the ending of its name.
        use_truth: Take the neighbors. Without them queries have no relevant items.
    """

    source: tyro.conf.Positional[str]
    folder: str
    queries: str | None = None
    truth: str | None = None
    split: str = "test"
    distance: str | None = None
    format: str | None = None
    use_truth: bool = True

    def run(self) -> None:
        from rails_ray.data.vector_files.folder import import_folder
        from rails_ray.storage.filesystem import Storage

        with out.status(f"importing {self.source}"):
            imported = import_folder(
                self.source,
                Storage(self.folder),
                queries=self.queries,
                truth=self.truth,
                split=self.split,
                format=self.format,
                distance=self.distance,
                use_truth=self.use_truth,
            )
        out.print(f"{self.folder}: {imported}", highlight=False, soft_wrap=True, markup=False)
        say_next(f"rails-ray encode --recipe vector-cosine --folder {shlex.quote(self.folder)}", STORAGE)


@dataclass(frozen=True, kw_only=True)
class Export(Stored):
    """Write vectors to a file: the items' vectors of a data folder, or what a version stores of its items.

    Args:
        target: The file to write: .npy, .fvecs, .fbin, .parquet, .hdf5 or .faiss.
        folder: A data folder. If left out: a version.
        version: A version, published or not. If left out: the current one.
        component: Number of the component to write, from 0, of a version whose items have several. If left out: the
            mean component.
        format: Format of the target. If left out: by the ending of its name.
        use_ids: Write the items' ids; .parquet holds any, .faiss integers.
    """

    target: tyro.conf.Positional[str]
    folder: str | None = None
    version: str | None = None
    component: int | None = None
    format: str | None = None
    use_ids: bool = True

    def run(self) -> None:
        from rails_ray.data.vector_files.folder import export_folder
        from rails_ray.data.vector_files.formats import export_vectors
        from rails_ray.families.version import Version
        from rails_ray.storage.filesystem import Storage

        with out.status(f"exporting to {self.target}"):
            if self.folder is not None:
                export_folder(Storage(self.folder), self.target, format=self.format, use_ids=self.use_ids)
            else:
                store = Storage(self.storage)
                found = Version.encoded(store, self.version).vectors(self.component)
                blocks = ((ids if self.use_ids else None, block) for ids, block in found.blocks)
                export_vectors(self.target, found.width, blocks, format=self.format)
        out.print(f"written to {self.target}", highlight=False, soft_wrap=True, markup=False)


@dataclass(frozen=True)
class IndexCommand:
    """List, show, verify, compare, compact, tag, collect and roll back versions; vectors from files and into files."""

    action: tyro.conf.OmitSubcommandPrefixes[
        Annotated[ListVersions, tyro.conf.subcommand("list")]
        | Annotated[VersionSizes, tyro.conf.subcommand("du")]
        | Annotated[ShowVersion, tyro.conf.subcommand("show")]
        | Annotated[VerifyVersion, tyro.conf.subcommand("verify")]
        | Annotated[DiffVersions, tyro.conf.subcommand("diff")]
        | Annotated[CompactVersion, tyro.conf.subcommand("compact")]
        | Annotated[Rollback, tyro.conf.subcommand("rollback")]
        | Annotated[TagVersion, tyro.conf.subcommand("tag")]
        | Annotated[UntagVersion, tyro.conf.subcommand("untag")]
        | Annotated[CollectGarbage, tyro.conf.subcommand("gc")]
        | Annotated[Import, tyro.conf.subcommand("import")]
        | Annotated[Export, tyro.conf.subcommand("export")]
    ]

    def run(self) -> dict[str, Any] | None:
        return self.action.run()
