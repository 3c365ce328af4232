"""Passes over items and queries, counted for whoever shows it."""

from rails_ray.counting import advance, shown


def test_nobody_is_shown_what_nobody_asks_for() -> None:
    advance(1, 2, "items")
    seen = list[tuple[int, int, str]]()
    with shown(lambda *one: seen.append(one)):
        advance(1, 2, "items")
    advance(2, 2, "items")
    assert seen == [(1, 2, "items")]
