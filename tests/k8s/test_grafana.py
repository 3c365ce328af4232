"""The dashboard shows what a server counts, all of it and nothing else."""

import json
import re
from pathlib import Path
from typing import Any

from rails_ray.on_ray.serving import listening
from rails_ray.serving.metrics import Metrics

DASHBOARD = json.loads((Path(__file__).parents[2] / "k8s" / "grafana.json").read_text())
OF_KIND = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_count", "_sum")}


class Noting:
    """Instruments that note their names, as Ray shows them, and their labels."""

    def __init__(self) -> None:
        self.labels = dict[str, set[str]]()
        self.kinds = dict[str, str]()

    def counter(self, name: str, about: str, labels: Any = ()) -> Any:
        return self._note("counter", name, labels)

    def gauge(self, name: str, about: str, labels: Any = (), *, is_one: bool = False) -> Any:
        return self._note("gauge", name, labels)

    def histogram(self, name: str, about: str, bounds: Any, labels: Any = ()) -> Any:
        assert list(bounds) == sorted(set(bounds))
        return self._note("histogram", name, labels)

    def _note(self, kind: str, name: str, labels: Any) -> Any:
        assert name not in self.kinds
        self.kinds[name] = kind
        self.labels |= {f"ray_{name}{suffix}": set(labels) for suffix in OF_KIND[kind]}
        return lambda value, **labels: None


def test_each_expression_reads_what_there_is_and_every_metric_is_shown() -> None:
    noting = Noting()
    Metrics(noting)
    noting.counter(*listening.REFUSED)
    shown = set[str]()
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            names = set(re.findall(r"ray_rails_ray_\w+", target["expr"]))
            assert names <= noting.labels.keys(), target["expr"]
            known = set.union(*(noting.labels[name] for name in names)) | {"le"}
            for by in re.findall(r"by \(([^)]*)\)", target["expr"]):
                assert set(by.replace(" ", "").split(",")) <= known, target["expr"]
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= known
            shown |= names
    hidden = {"rails_ray_shadow_queries", "rails_ray_feedback_queries", "rails_ray_version_since_seconds"}
    # The intervals of the first two say it better, and a change of `rails_ray_version` says the last.
    assert {name for name in noting.kinds if not any(f"ray_{name}" in own for own in shown)} == hidden


def test_panels_do_not_lie_on_each_other() -> None:
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in DASHBOARD["panels"]]
    assert len(set(places)) == len(places)
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(places)
