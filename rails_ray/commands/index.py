"""List, show, verify and roll back index versions."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from rails_ray.commands.base import Stored, errors, out
from rails_ray.errors import DamagedError


@dataclass(frozen=True, kw_only=True)
class ListVersions(Stored):
    """List all versions and their states: current, published, encoded, encoding (maybe cut off) or damaged."""

    def run(self) -> None:
        from rails_ray import rendering
        from rails_ray.storage import versions
        from rails_ray.storage.filesystem import Storage

        out.print(rendering.versions(versions.listed(Storage(self.storage)), f"versions in {self.storage}"))


@dataclass(frozen=True, kw_only=True)
class ShowVersion(Stored):
    """Show the facts and the files of a version."""

    version: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="[VERSION]")] = None
    """A published version. If left out: the current one."""

    def run(self) -> None:
        from rails_ray import rendering
        from rails_ray.storage.filesystem import Storage
        from rails_ray.storage.versions import read_manifest

        out.print(*rendering.version(read_manifest(Storage(self.storage), self.version)), sep="\n")


@dataclass(frozen=True, kw_only=True)
class VerifyVersion(Stored):
    """Check every byte of a version and of its calibration against the stored checksums."""

    version: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="[VERSION]")] = None
    """A published version. If left out: the current one."""

    def run(self) -> None:
        from rails_ray import rendering
        from rails_ray.storage import calibrations, versions
        from rails_ray.storage.filesystem import Storage

        store = Storage(self.storage)
        manifest = versions.read_manifest(store, self.version)
        num_files = len(manifest.parts) + len(manifest.files)
        damages = []
        with rendering.bar(out, f"verify {manifest.version}") as on_progress:
            for done, damage in enumerate(versions.damages(store, manifest), start=1):
                on_progress(done, num_files, "files")
                damages += [damage] if damage else []
        try:
            calibration = calibrations.read_current(store, manifest.version)
        except DamagedError as error:
            damages.append(str(error))
        for damage in damages:
            errors.print(f"rails-ray: {damage}", highlight=False, markup=False, soft_wrap=True)
        if damages:
            raise DamagedError(f"all {num_files} files of {manifest.version} must be whole, got {len(damages)} damaged")
        out.print(f"version {manifest.version}: {num_files} files, {manifest.num_items} items, all as published")
        if calibration is not None:
            out.print(f"calibrated at {calibration.created_at} on {calibration.positives.num_queries} queries")


@dataclass(frozen=True, kw_only=True)
class Rollback(Stored):
    """Make an earlier version current again. A running server keeps the version that it started with."""

    version: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="[VERSION]")] = None
    """A published version. If left out: the one that was current before."""

    def run(self) -> None:
        from rails_ray.storage import versions
        from rails_ray.storage.filesystem import Storage

        manifest = versions.rollback(Storage(self.storage), self.version)
        out.print(f"version {manifest.version} is current: {manifest.num_items} items, {len(manifest.parts)} parts")


@dataclass(frozen=True)
class Index:
    """List, show, verify and roll back index versions."""

    action: tyro.conf.OmitSubcommandPrefixes[
        Annotated[ListVersions, tyro.conf.subcommand("list")]
        | Annotated[ShowVersion, tyro.conf.subcommand("show")]
        | Annotated[VerifyVersion, tyro.conf.subcommand("verify")]
        | Annotated[Rollback, tyro.conf.subcommand("rollback")]
    ]

    def run(self) -> None:
        self.action.run()
