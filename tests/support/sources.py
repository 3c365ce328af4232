"""What a module of the package names, read from its source."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]


def sources(folder: str = "rails_ray") -> dict[str, str]:
    """The source of each Python file below a folder, by its path from the root."""
    return {str(file.relative_to(ROOT)): file.read_text() for file in sorted((ROOT / folder).rglob("*.py"))}


def module_of(path: str) -> str:
    """The name by which a file is imported."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@cache
def imported(source: str) -> frozenset[str]:
    """The modules that are imported, wherever in the file, and what is imported from them, by dotted names."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(found)


@cache
def named(source: str) -> frozenset[str]:
    """All names, attributes, imported names, and strings, of which some are annotations."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.Constant(value=str(name)):
                found.add(name)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                found |= {alias.name.rpartition(".")[2] for alias in aliases}
            case ast.ClassDef(name=name):
                found.add(name)
    return frozenset(found)


@cache
def asked_about(source: str) -> frozenset[str]:
    """The names of classes that an object is asked to be of, by isinstance, issubclass, type() or match; and
    "family.kind" or "form" where such an attribute is compared or matched."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, classes]):
                found |= named(ast.unparse(classes))
            case ast.MatchClass(cls=cls):
                found |= named(ast.unparse(cls))
            case ast.Match(subject=subject):
                found |= set(_attributes(subject))
            case ast.Compare(left=left, comparators=others):
                found |= {name for side in (left, *others) for name in _attributes(side)}
                if any("type(" in ast.unparse(side) for side in (left, *others)):
                    found |= named(ast.unparse(node))
    return frozenset(found)


def _attributes(node: ast.expr) -> Iterator[str]:
    match node:
        case ast.Attribute(attr="kind", value=ast.Name(id="family") | ast.Attribute(attr="family")):
            yield "family.kind"
        case ast.Attribute(attr="form"):
            yield "form"


def modules_of(*folders: str) -> list[str]:
    """The modules of some rooms, by their names."""
    files = [file for folder in folders for file in (ROOT / "rails_ray" / folder).rglob("*.py")]
    names = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files]
    return [name.removesuffix(".__init__") for name in names]
