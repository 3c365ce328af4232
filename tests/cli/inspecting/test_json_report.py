"""The report as JSON has the keys that docs/data.md says, each of its type."""

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rails_ray.cli.inspecting import timing
from rails_ray.cli.inspecting.report import inspect
from rails_ray.data.sources import Sources
from rails_ray.families import advising
from rails_ray.families.recipes import names
from support.data_folders import write_text_data, write_vector_data
from support.inspected import change, setting, write

PAGE = Path(__file__).parents[3] / "docs/data.md"
ROW = re.compile(r"^\| `([^`]+)` +\| ([a-z ]+?) +\|", re.MULTILINE)
TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "strings": (list,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "null": (type(None),),
}


def documented() -> dict[str, str]:
    """The type of each key of the page; names in braces are several keys."""
    section = PAGE.read_text().partition("### The report as JSON")[2].partition("\n#")[0]
    found = {}
    for key, kind in ROW.findall(section):
        parts = [part.split(",") for part in re.split(r"[{}]", key)]
        for chosen in itertools.product(*parts):
            found["".join(chosen)] = kind
    return found


def keys_of(value: Any, documented: dict[str, str], at: str = "") -> Iterator[tuple[str, Any]]:
    """The documented key, or else the real one, of each value below an object, and of objects that are a row."""
    for name, below in value.items():
        names = (f"{at}.{part}".lstrip(".") for part in (name, "*"))
        key = next(
            (key for key in names if any(row == key or row.startswith((f"{key}.", f"{key}[]")) for row in documented)),
            None,
        )
        assert key is not None, f"{at}.{name} is not in {PAGE.name}"
        if isinstance(below, dict):
            if key in documented:
                yield key, below
            yield from keys_of(below, documented, key)
        elif isinstance(below, list) and key not in documented:
            for one in below:
                yield from keys_of(one, documented, f"{key}[]")
        else:
            yield key, below


def is_of(value: Any, kind: str) -> bool:
    if isinstance(value, list):
        return kind == "strings" and all(isinstance(one, str) for one in value)
    wanted = tuple(itertools.chain.from_iterable(TYPES[one] for one in kind.split(" or ")))
    return isinstance(value, wanted) and (not isinstance(value, bool) or kind == "boolean")


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("data")
    for form in ("text", "history", "features"):
        write(folder / form, form)
    write_vector_data(folder / "vectors")
    change(folder / "vectors", "relevance", lambda found: found.append_column("weight", pa.array([0.5] * len(found))))
    for table in ("queries", "relevance"):
        (write_text_data(folder / "alone") / f"{table}.parquet").unlink()
    change(write_text_data(folder / "refused"), "queries", setting("split", 1, "holdout"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "can_be_timed", lambda own, read: own.config.name != "text-dot")
        timed = inspect(Sources(str(folder / "text")), num_sampled=100, has_timing=True)
        patch.setattr(advising, "MOST_STEPS", 2)
        histories = Sources(str(folder / "history"))
        compared = inspect(histories, num_sampled=100, has_timing=False, compared="ml1m-sasrec-mol")
    others = ("features", "vectors", "alone", "refused")
    found = [
        timed,
        compared,
        *(inspect(Sources(str(folder / name)), num_sampled=100, has_timing=False) for name in others),
    ]
    return [json.loads(json.dumps(report)) for report in found]


def test_every_key_is_documented_with_its_type_and_every_documented_key_is_there(reports: list[dict[str, Any]]) -> None:
    kinds, seen = documented(), set[str]()
    for report in reports:
        for key, value in keys_of(report, kinds):
            assert is_of(value, kinds[key]), (key, value, kinds[key])
            seen.add(key)
    assert seen == kinds.keys()


def test_the_top_of_every_report_is_the_same(reports: list[dict[str, Any]]) -> None:
    assert {tuple(report) for report in reports} == {tuple(reports[0])}
    for report in reports:
        assert report["format"] == 1
        assert sorted(report["recipes"]) == sorted(names())


@pytest.mark.parametrize(("value", "kind"), [(True, "integer"), (None, "number"), ([1], "strings"), ("x", "integer")])
def test_another_type_is_seen(value: Any, kind: str) -> None:
    assert not is_of(value, kind)


def test_an_unknown_key_is_seen(reports: list[dict[str, Any]]) -> None:
    with pytest.raises(AssertionError, match=r"facts\.\*\.items\.price is not in data\.md"):
        list(keys_of({"facts": {"text": {"items": {"num": 1, "price": 2}}}}, documented()))
