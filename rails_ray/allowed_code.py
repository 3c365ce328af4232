"""Decide which code that a stored config names by its import path is carried out.

A config that is read from storage may have been written by anybody who can write there. The code that it names is
carried out only if

    it is one of our own rankers (`OWN_RANKERS`), or
    the opener allows the module that its path names and the module that defines it,

so that `my_rankers:getoutput` is refused where my_rankers imports it from subprocess. What users name in the very call
is their own word, and is carried out as they name it.

The allowance travels with the call: no process keeps one.
"""

import functools
import importlib.util
import os
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

VARIABLE = "RAILS_RAY_ALLOW_CODE"  # modules with commas between them, for processes that nobody gives arguments
OURS = "rails_ray"
MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*", re.ASCII)
PATH = re.compile(rf"{MODULE.pattern}:[^\W\d]\w*", re.ASCII)


@dataclass(frozen=True)
class AllowedCode:
    """Code that may be carried out where a config names it.

    named: modules, each with what lies below it, and import paths MODULE:NAME, each for itself.
    reader: what names the code, such as a version, as the subject of a sentence.
    storage: root of the storage that it was read from; empty for none. No module is taken from there.
    """

    named: tuple[str, ...] = ()
    reader: str = "a stored config"
    storage: str = ""

    @staticmethod
    def given(allow_code: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> "AllowedCode":
        """Read what an argument and the environment of this process allow.

        Raises:
            ValueError: if one of them is neither a module of the user's own nor an import path.
        """
        if isinstance(allow_code, str):
            raise ValueError(f"allow_code must be a list of modules, got the text {allow_code!r}")
        found = (os.environ if environment is None else environment).get(VARIABLE, "")
        for where, names in (("allow_code", allow_code), (VARIABLE, _words(found))):
            for name in names:
                _check_name(where, name)
        return AllowedCode(tuple(dict.fromkeys([*allow_code, *_words(found)])))

    def also(self, *paths: str) -> "AllowedCode":
        """Add import paths that a user has named in this call."""
        return replace(self, named=tuple(dict.fromkeys([*self.named, *filter(None, paths)])))

    def read_by(self, reader: str, storage: str = "") -> "AllowedCode":
        """Say which config names code, and the storage that it is read from."""
        return replace(self, reader=reader, storage="" if "://" in storage else storage)

    def check(self, what: str, path: str, own: Collection[str] = ()) -> None:
        """Check an import path before anything is imported.

        Args:
            what: what it is to be, such as ranker.
            own: our own import paths that are such.

        Raises:
            ValueError: if it is not allowed.
        """
        if self._holds(path, own):
            return
        module = path.partition(":")[0]
        if _is_below(module, OURS):
            raise ValueError(
                f"{self.reader} must name a {what} that rails-ray has, or one in a module of your own, got {path!r}"
            )
        raise ValueError(
            f"{self.reader} names the {what} {path!r}, code that this process is not allowed to run: if you trust "
            f"everyone who can write to its storage, allow it by --allow-code {module}, by allow_code in Python and in "
            f"Serve's args, or by {VARIABLE}"
        )

    def check_place(self, what: str, path: str, own: Collection[str] = ()) -> None:
        """Check where a module would be imported from, before it is.

        Args:
            own: our own import paths, wherever this package is installed.

        Raises:
            ValueError: if it lies in the storage: a writer of configs could then write the module too.
        """
        if path in own or path in self.named or not self.storage:
            return
        for place in _places(path.partition(":")[0].partition(".")[0]):
            if Path(place).resolve().is_relative_to(Path(self.storage).resolve()):
                raise ValueError(
                    f"the {what} {path!r} of {self.reader} must lie outside the storage that names it, got {place}"
                )

    def check_defined(self, what: str, path: str, found: Any, own: Collection[str] = ()) -> None:
        """Check where the object that a path leads to is defined.

        Raises:
            ValueError: if that is not allowed.
        """
        if path in self.named:
            return
        while isinstance(found, functools.partial):
            found = found.func
        if isinstance(found, ModuleType):
            place = name = found.__name__
        else:
            place = getattr(found, "__module__", None) or type(found).__module__
            name = getattr(found, "__qualname__", type(found).__qualname__)
        if not self._holds(f"{place}:{name}", own):
            raise ValueError(
                f"{self.reader} must name a {what} that is defined where code is allowed, got {path!r}, which is "
                f"defined in {place}"
            )

    def _holds(self, path: str, own: Collection[str]) -> bool:
        module = path.partition(":")[0]
        if path in own or path in self.named:
            return True
        return not _is_below(module, OURS) and any(_is_below(module, name) for name in self.named)


OURS_ALONE = AllowedCode()


def is_path(path: str) -> bool:
    """Check the form MODULE:NAME."""
    return PATH.fullmatch(path) is not None


def _words(listed: str) -> list[str]:
    return [word.strip() for word in listed.split(",") if word.strip()]


def _check_name(where: str, name: str) -> None:
    if not (MODULE.fullmatch(name) or is_path(name)):
        raise ValueError(f"{where} must name modules, such as my_rankers or my_rankers.fast, got {name!r}")
    if ":" not in name and _is_below(name, OURS):
        raise ValueError(f"{where} must name modules of your own, got {name}: the rankers of rails-ray are allowed")


def _is_below(module: str, name: str) -> bool:
    return module == name or module.startswith(f"{name}.")


def _places(module: str) -> list[str]:
    """The files or folders that a top-level module comes from; none if there is no such module, or it is built in."""
    loaded = sys.modules.get(module)
    spec = importlib.util.find_spec(module) if loaded is None else loaded.__spec__
    if spec is None:
        return []
    return [*(spec.submodule_search_locations or ()), *([spec.origin] if spec.has_location and spec.origin else [])]
