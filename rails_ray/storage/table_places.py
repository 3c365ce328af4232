"""The files of a table, by its place: one file, or several files, local or in a store of objects.

    items.parquet          a file
    items                  a folder: all files below it that end in .parquet; also a folder called items.parquet
    2026-*/items-*.parquet all files and folders that fit; * and ? match within one name

Several files count as one table, in the order of their paths. Files without rows or bytes, hidden ones, and names that
begin with an underscore (`_SUCCESS`, `_temporary`) are left out.
"""

import fnmatch

from rails_ray.errors import NotFoundError
from rails_ray.storage.filesystem import Storage, local_path
from rails_ray.storage.tables import Table

ENDING = ".parquet"
LAKES = {"_delta_log": "Delta Lake", "metadata": "Iceberg"}  # folders of logs that say which files count


def find(place: str) -> Table:
    """The table of a file, a folder or a pattern.

    Args:
        place: absolute, or a URL such as s3://bucket/path.

    Raises:
        NotFoundError: if there is none.
        ValueError: if the folder belongs to a format whose log says which files count.
    """
    place = local_path(place)
    root, _, name = place.rstrip("/").rpartition("/")
    if root.endswith(":/"):
        raise NotFoundError(f"{place} must name a file, a folder or a pattern in the bucket, got the bucket alone")
    root = root or "/"
    if any(mark in place for mark in "*?"):
        return _fitting(place)
    if Storage(root).exists(name):
        return Table(root, (name,))
    paths, left_out = _files_below(Storage(root), name)
    if not paths:
        raise NotFoundError(f"{place} must exist, got no such file, and no folder of Parquet files of this name")
    return Table(root, tuple(paths), name, left_out=tuple(left_out))


def _fitting(place: str) -> Table:
    """The files that fit a pattern, and those of the folders that do."""
    fixed, names = place, list[str]()
    while any(mark in fixed for mark in "*?"):
        fixed, _, name = fixed.rpartition("/")
        names.insert(0, name)
    fixed = fixed or "/"
    storage, fitting = Storage(fixed), [""]
    for name in names:
        fitting = [
            f"{path}/{found}".lstrip("/")
            for path in fitting
            for found in storage.list(path or ".")
            if fnmatch.fnmatchcase(found, name.replace("[", "[[]"))  # a bracket stands for itself
        ]
    paths, left_out = list[str](), list[str]()
    for path in fitting:
        below = ([path], []) if storage.exists(path) else _files_below(storage, path)
        paths += below[0]
        left_out += below[1]
    if not paths:
        raise NotFoundError(f"{place} must fit a file, got none")
    return Table(fixed, tuple(paths), left_out=tuple(left_out))


def _files_below(storage: Storage, folder: str) -> tuple[list[str], list[str]]:
    """The Parquet files below a folder, and its other files, but for those whose names begin with a dot."""
    paths, left_out = list[str](), list[str]()
    for path in storage.walk(folder):
        names = path.removeprefix(folder).strip("/").split("/")
        if names[0] in LAKES and names[-1].endswith(".json"):
            raise ValueError(
                f"{storage}/{folder} must be Parquet files that all count, got a table of {LAKES[names[0]]}, whose log "
                "says which do: write the rows of its current version to a folder"
            )
        is_part = path.endswith(ENDING) and not any(name.startswith("_") for name in names)
        (paths if is_part else left_out).append(path)
    return paths, left_out
