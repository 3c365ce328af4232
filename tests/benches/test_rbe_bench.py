"""The bench of RBE: what its command line asks."""

from pathlib import Path

import pytest

from jobs.benches import rbe


def test_all_data_sets_are_asked_about_unless_some_are_named() -> None:
    assert rbe.parsed(["calls", "/store"]) == rbe.Asked("calls", Path("/store"), list(rbe.RANKERS))
    assert rbe.parsed(["fill", "/store", "tldr"]) == rbe.Asked("fill", Path("/store"), ["tldr"])


@pytest.mark.parametrize("words", ["", "why /store", "calls", "calls /store tldr emoji", "greedy /store"])
def test_what_is_no_question_is_told_in_a_sentence(words: str) -> None:
    told = f"greedy, or one of fill, supports, .* with STORAGE and names among molecules, .*, got {words or 'none'}$"
    with pytest.raises(SystemExit, match=told):
        rbe.main(words.split())
