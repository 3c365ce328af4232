"""Metrics as Ray gets them: sums and samples now and then, and gauges again and again, as it forgets them."""

from typing import Any

import pytest
from ray.serve import metrics

from rails_ray.on_ray.serving import instruments
from support.processes import wait_for


class Noted:
    """A metric of Ray's that notes what it is told."""

    def __init__(self, name: str, about: str, *of_its_kind: Any) -> None:
        self.told = list[tuple[float, dict[str, str]]]()
        made[name] = self

    def inc(self, value: float, tags: dict[str, str]) -> None:
        self.told.append((value, tags))

    set = inc


made = dict[str, Noted]()


@pytest.fixture
def replica(monkeypatch: pytest.MonkeyPatch) -> instruments.RayMetrics:
    made.clear()
    for name in ("Counter", "Gauge"):
        monkeypatch.setattr(metrics, name, Noted)
    monkeypatch.setattr(instruments, "EVERY_S", 0.01)
    return instruments.RayMetrics()


def test_a_gauge_is_set_again_and_again(replica: instruments.RayMetrics) -> None:
    gauge = replica.gauge("gauge", "about", ("bound",))
    gauge(0.25, bound="low")
    gauge(0.5, bound="low")
    gauge(0.75, bound="high")
    wait_for(lambda: made["gauge"].told.count((0.75, {"bound": "high"})) >= 3)
    assert made["gauge"].told.count((0.5, {"bound": "low"})) >= 2


def test_a_counter_is_noted_in_sums(replica: instruments.RayMetrics) -> None:
    count = replica.counter("count", "about", ("status",))
    for number in range(1000):
        count(1, status=str(number % 2))
    wait_for(lambda: sum(value for value, _ in made["count"].told) == 1000)
    assert len(made["count"].told) < 500
    assert {tags["status"] for _, tags in made["count"].told} == {"0", "1"}


def test_a_histogram_notes_a_sample_of_each_label() -> None:
    told = list[tuple[float, dict[str, str]]]()
    sample = instruments._Sample(lambda value, tags: told.append((value, tags)))
    for number in range(10_000):
        sample.add(number, stage="cut")
    sample.add(7, stage="merge")
    sample.note()
    cut = [value for value, tags in told if tags == {"stage": "cut"}]
    assert len(cut) == len(set(cut)) == instruments.MOST_NOTED
    assert min(cut) < 5000 < max(cut)  # not the first or the last alone: wrong once in half a million runs
    assert [value for value, tags in told if tags == {"stage": "merge"}] == [7]
    sample.note()
    assert len(told) == instruments.MOST_NOTED + 1
