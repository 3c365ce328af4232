"""Bodies of JSON: what the quick parser says, Python's says too."""

import json
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.exceptions import HTTPException

from rails_ray.serving.http.json_bodies import exactly, quickly, read_json

SMALL = st.floats(-1e-3, 1e-3)  # whose fractions have 20 digits and more
NUMBERS = st.integers(-(2**65), 2**66) | st.floats(allow_nan=False, allow_infinity=False) | SMALL
PLAIN = st.none() | st.booleans() | NUMBERS | st.text()
VALUES = st.recursive(PLAIN, lambda own: st.lists(own) | st.dictionaries(st.text(), own), max_leaves=20)


@given(st.dictionaries(st.text(), VALUES), st.sampled_from([None, 2]), st.booleans())
def test_it_says_what_python_says_or_nothing(value: dict[str, Any], indent: int | None, is_ascii: bool) -> None:
    body = json.dumps(value, indent=indent, ensure_ascii=is_ascii).encode(errors="surrogatepass")
    try:
        expected = exactly(body)
    except HTTPException:
        assert quickly(body) is None
        return
    found = quickly(body)
    assert found is None or json.dumps(found) == json.dumps(expected)
    assert json.dumps(read_json(body)) == json.dumps(expected)


def test_a_usual_request_is_read_quickly() -> None:
    request = {
        "queries": [{"embedding": [0.25, -1e-3]}, {"text": "red", "exclude": [7]}],
        "k": 3,
        "cutoff": {"mass": 0.9},
    }
    assert quickly(json.dumps(request).encode()) == request


def test_long_fractions_are_read_quickly() -> None:
    """Numbers below 1e-3 have 20 digits after the point: zeros, and 17 significant ones."""
    body = b'{"queries": [{"embedding": [0.00012345678901234567, -0.00098765432109876543, 1.5e-05]}]}'
    assert quickly(body) == json.loads(body)
    drawn = np.random.default_rng(0).standard_normal(4000).astype(np.float32) * 1e-3
    vectors = {"queries": [{"embedding": drawn.tolist()}]}
    assert quickly(orjson.dumps(vectors)) == vectors


@pytest.mark.parametrize(
    "body",
    [
        b'{"k": [0.00012345678901234567, 18446744073709551616]}',
        b'{"k": [0.00012345678901234567,-9223372036854775809]}',
        b'{"k": 1, "k": 2}',
        b'{"queries": [{"text": "a", "text": "b"}]}',
        b'{"queries": [1, {"k": 1, "k": 2}]}',
        b'{"cutoff": {"mass": 0.5, "mass": 0.9}}',
        b'{"text": "a:b"}',  # which might hide one
        b'{"k": 18446744073709551616}',
        b'{"k": 100000000000000000000000}',
        b'{"k": NaN}',
        b'{"k": Infinity}',
        b"\xef\xbb\xbf{}",
        b'{"text": "\\ud800"}',
        b'{"text": "\xff"}',
        b"[1]",
        b"7",
        b"",
        b"{",
        b'{"a": ' + b"[" * 2000 + b"]" * 2000 + b"}",
    ],
)
def test_what_it_leaves_to_python(body: bytes) -> None:
    assert quickly(body) is None


def test_a_large_integer_stays_one() -> None:
    assert read_json(b'{"k": 18446744073709551616}') == {"k": 2**64}
    assert read_json(b'{"k": 18446744073709551615}') == {"k": 2**64 - 1}
