"""Which versions a storage need not keep, and which files nothing needs then.

Kept are the current version, the one before, those with a tag or a server's lease, the newest of the others, those that
are not published, and those whose folder holds files of a kept version. A kept version needs

- its folder, with all calibrations, as a server may read an older one;
- the files that its manifest names, in whatever folder;
- the objects that records in its folder name: encoding resumes from them, and a compaction builds its indexes.

Runs, data sets, relevance matrices and the vectors of texts belong to no version, and stay. What is needed is read from
records, never guessed from the age of a file.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rails_ray.errors import DamagedError, NotFoundError
from rails_ray.storage import leases, tags, versions
from rails_ray.storage.described import Encoded, Manifest
from rails_ray.storage.filesystem import NAME, Storage
from rails_ray.storage.manifest import OBJECTS, folder_of, location, read_json
from rails_ray.storage.versions import Listed

KEEP = 5
OBJECT = re.compile(rf"{OBJECTS}/[0-9a-f]{{64}}")
# Deleted in this order: what is no version any more must not look like an encoding that could go on.
FIRST = ("encoded.json", "begun.json", "manifest.json")


@dataclass(frozen=True, kw_only=True)
class RetentionPolicy:
    """Which versions may go.

    keep: how many of the newest published versions stay beside the current one.
    versions: versions to delete; if any are named, no others go.
    unfinished: whether encodings go that were cut off.

    Raises:
        ValueError: if `keep` is negative.
    """

    keep: int = KEEP
    versions: Sequence[str] = ()
    unfinished: bool = False

    def __post_init__(self) -> None:
        if self.keep < 0:
            raise ValueError(f"keep must be at least 0, got {self.keep}")


@dataclass(frozen=True)
class VersionFate:
    """
    state: as in `versions.Listed`, or `left over` for a folder without a record.
    reasons: why it is kept; none if it goes.
    size_bytes: of the files to delete that it names, each of which others may name too.
    """

    version: str
    state: str
    reasons: Sequence[str]
    size_bytes: int


@dataclass(frozen=True)
class Garbage:
    """
    versions: all versions, by name.
    files: the bytes of each file to delete, in the order in which to delete them.
    total_bytes: all files of versions.
    """

    versions: Sequence[VersionFate]
    files: Mapping[str, int]
    total_bytes: int

    @property
    def size_bytes(self) -> int:
        return sum(self.files.values())

    @property
    def is_most(self) -> bool:
        """Return whether more than half of all bytes would go."""
        return 2 * self.size_bytes > self.total_bytes


def find(storage: Storage, policy: RetentionPolicy, now: float, look: Callable[[], object] = lambda: None) -> Garbage:
    """Read what is needed, and find what is not.

    Args:
        now: seconds since 1970, for leases.
        look: called now and then.

    Raises:
        NotFoundError: if nothing was published, or a version to delete does not exist.
        DamagedError: if the record of a version that stays cannot be read, so that nobody knows what it needs.
        ValueError: if a version to delete is needed.
    """
    versions.read_manifest(storage)
    found, (num_readers, expired) = versions.listed(storage), leases.readers(storage, now)
    look()
    sizes = {**storage.sizes("versions"), **storage.sizes(OBJECTS)}
    folders = _by_folder(sizes)
    left_over = sorted(name for name in folders if NAME.fullmatch(name) and name not in {own.version for own in found})
    _check_there(policy.versions, {*left_over, *(own.version for own in found)})
    reasons = _reasons(storage, policy, found, num_readers)
    needed = set[str]()
    for own in found:
        look()
        if own.version in reasons:
            needed |= _needed(storage, own, folders[own.version])
    going = [own.version for own in found if own.version not in reasons] + left_over
    in_folders = _in_order(path for name in going for path in folders[name] if path not in needed)
    files = {path: sizes[path] for path in in_folders}
    files |= {path: size for path, size in sizes.items() if OBJECT.fullmatch(path) and path not in needed}
    named = {own.version: _named(own.described) for own in found}
    fates = [
        VersionFate(
            version=name,
            state=state,
            reasons=reasons.get(name, ()),
            size_bytes=sum(files.get(path, 0) for path in {*folders[name], *named.get(name, ())}),
        )
        for name, state in sorted(
            [*((own.version, own.state) for own in found), *((own, "left over") for own in left_over)]
        )
    ]
    return Garbage(fates, files | dict.fromkeys(expired, 0), sum(sizes.values()))


def _reasons(
    storage: Storage, policy: RetentionPolicy, found: Sequence[Listed], num_readers: Mapping[str, int]
) -> dict[str, list[str]]:
    """Why versions are kept. Raises what `find` does."""
    pointed, states = versions.read_pointer(storage), {own.version: own.state for own in found}
    reasons = defaultdict[str, list[str]](list)
    reasons[pointed.version].append("current")
    if pointed.previous in states and pointed.previous is not None:
        reasons[pointed.previous].append("current before")
    for name, version in tags.listed(storage).items():
        reasons[version].append(f"tag {name}")
    for version, number in num_readers.items():
        reasons[version].append(f"{number} server{'' if number == 1 else 's'}")
    if policy.versions:
        rest = {version: "not named" for version in states if version not in policy.versions}
    else:
        rest = _by_policy(policy, found, pointed.version)
    for version, reason in rest.items():
        if version not in reasons:
            reasons[version].append(reason)
    for own in found:
        if own.described is not None and own.version in reasons and own.described.home != own.version:
            reasons[own.described.home].append(f"files of {own.version}")
    for version in policy.versions:
        if version in reasons:
            raise ValueError(
                f"a version to delete must be one that nothing needs, got {version}: {', '.join(reasons[version])}"
            )
    damaged = [
        own.version for own in found if own.described is None and own.state == "damaged" and own.version in reasons
    ]
    if damaged:
        raise DamagedError(
            f"the record of each version must be readable to tell which files it needs, got that of {damaged[0]} "
            f"damaged: restore it, or delete it with --version {damaged[0]}"
        )
    return reasons


def _check_there(named: Sequence[str], known: set[str]) -> None:
    """Raises:
    NotFoundError: if a version to delete does not exist.
    """
    for version in named:
        if version not in known:
            raise NotFoundError(f"version must be one of {', '.join(sorted(known))}, got {version!r}")


def _by_policy(policy: RetentionPolicy, found: Sequence[Listed], current: str) -> dict[str, str]:
    """Versions that nothing else keeps, with the reason why the policy does."""
    others = [own.described for own in found if isinstance(own.described, Manifest) and own.version != current]
    newest = sorted(others, key=lambda own: (own.created_at, own.version), reverse=True)[: policy.keep]
    kept = {own.version: f"among the newest {policy.keep}" for own in newest}
    for own in found:
        if own.state == "encoded":
            kept[own.version] = "not published"
        elif own.state == "damaged":
            kept[own.version] = "damaged"
        elif own.state == "encoding" and not policy.unfinished:
            kept[own.version] = "not finished"
    return kept


def _by_folder(paths: Iterable[str]) -> dict[str, list[str]]:
    """The paths below versions/, by version."""
    found = defaultdict[str, list[str]](list)
    for path in paths:
        names = path.split("/")
        if names[0] == "versions" and len(names) > 2:
            found[names[1]].append(path)
    return found


def _in_order(paths: Iterable[str]) -> list[str]:
    """Paths in folders of versions, in the order in which to delete them: what makes any of them a version first."""

    def place(path: str) -> tuple[int, str]:
        folder, _, name = path.rpartition("/")
        is_record = name in FIRST and folder.count("/") == 1
        return (FIRST.index(name) if is_record else len(FIRST)), path

    return sorted(paths, key=place)


def _named(described: Encoded | None) -> set[str]:
    """Where the files lie that a record names."""
    return set() if described is None else {location(described.home, entry) for entry in described.entries}


def _needed(storage: Storage, own: Listed, folder: Sequence[str]) -> set[str]:
    """All files that a version needs.

    Raises:
        DamagedError: if a record in its folder cannot be read.
    """
    needed = {*folder, *_named(own.described)}
    for path in folder:
        below = path.removeprefix(f"{folder_of(own.version)}/")
        if below.startswith("indexes/") or (below.startswith("parts/") and own.described is None):
            record = read_json(storage, path)
            named = record.get("part", record)
            if not isinstance(named, dict) or not isinstance(named.get("path"), str):
                raise DamagedError(f"{storage}/{path} must name a file, got none: delete the version with its name")
            needed.add(named["path"])
    return needed
