from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
from matplotlib.figure import Figure

from rails_ray.cli import plotting
from rails_ray.cli.main import main
from rails_ray.cutoffs.measuring import Measured
from rails_ray.schema.responses import ExplainedItem, ExplainResponse
from rails_ray.training.evaluation.calibrating import CalibrationReport, ListLengths
from support.data_folders import write_text_data
from support.responses import search_response

MEASURED = Measured(0.9, None, 0.91, 0.9, 0.92, 0.88, 0.94, 50)
LISTS = ListLengths(0.9, 3.5, (0.0, 2.0, 9.0), 0.1, False)
REPORT = CalibrationReport("valid", "test", 50, (0.1,), [MEASURED, replace(MEASURED, segment=1)], [LISTS], [])
FULL = 0.9999999999999999  # of a segment whose queries all keep everything, where rounding leaves an interval below it


@pytest.mark.parametrize(
    "report",
    [
        REPORT,
        replace(REPORT, edges=(), measured=[MEASURED]),
        replace(REPORT, measured=[replace(MEASURED, coverage=1.0, low_both=1.0, high_both=FULL)]),
        replace(REPORT, measured=[], lists=[]),
    ],
    ids=["segments", "one segment", "rounding", "nothing measured"],
)
def test_a_calibration_is_drawn(report: CalibrationReport, tmp_path: Path) -> None:
    plotting.calibration(report, "version v1", tmp_path / "drawn.png")
    height, width, _ = matplotlib.image.imread(tmp_path / "drawn.png").shape
    assert width > height > 300


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Figures that are saved, before they are."""
    found, save = list[Figure](), plotting._save

    def keep(figure: Figure, path: Path) -> None:
        found.append(figure)
        save(figure, path)

    monkeypatch.setattr(plotting, "_save", keep)
    return found


SCORES = [0.9, 0.7, 0.6, 0.2, 0.1]


@pytest.mark.parametrize(
    ("num_kept", "threshold", "line"),
    [(2, 0.65, "cut-off at 0.65"), (2, None, "cut-off after 2"), (5, None, None), (0, 0.95, "cut-off at 0.95")],
)
def test_scores_are_drawn_with_the_cut_off(
    num_kept: int, threshold: float | None, line: str | None, drawn: list[Figure], tmp_path: Path
) -> None:
    answer = search_response(items=[*"abcde"], scores=SCORES, num_kept=num_kept, threshold=threshold)
    plotting.plot_scores(answer, tmp_path / "scores.png", ["a $query"])
    [axes] = drawn[0].axes
    points = {str(one.get_label()): np.asarray(one.get_offsets()).tolist() for one in axes.collections}
    both = list(zip(range(1, 6), SCORES, strict=True))
    parts = {"kept": both[:num_kept], "cut": both[num_kept:]}
    expected = {f"{name}: {len(own)}": [list(pair) for pair in own] for name, own in parts.items() if own}
    assert points == expected
    assert [one.get_label() for one in axes.lines] == ([line] if line else [])
    colors = {tuple(np.asarray(one.get_facecolor())[0]) for one in axes.collections}
    assert len(colors) == len(points)
    assert matplotlib.image.imread(tmp_path / "scores.png").shape[1] > 300


def explained(shape: tuple[int, int], num_items: int) -> ExplainResponse:
    generator = np.random.default_rng(0)
    items = [
        ExplainedItem(
            item=number,
            title="\N{SLICE OF PIZZA}" if number else None,
            score=0.5,
            cosines=generator.uniform(-1, 1, shape).tolist(),
            gates=generator.dirichlet(np.ones(shape[0] * shape[1])).reshape(shape).tolist(),
        )
        for number in range(num_items)
    ]
    return ExplainResponse(version="v", items=items)


@pytest.mark.parametrize(("shape", "num_items"), [((1, 1), 1), ((1, 3), 3), ((2, 3), 9), ((8, 4), 3), ((16, 16), 1)])
def test_an_explanation_is_drawn(shape: tuple[int, int], num_items: int, drawn: list[Figure], tmp_path: Path) -> None:
    answer = explained(shape, num_items)
    plotting.plot_explanation(answer, tmp_path / "why.png", "a query")
    for item, axes in zip(answer.items[: plotting.MOST_PANELS], drawn[0].axes, strict=False):
        added = np.array(item.gates) * np.array(item.cosines)
        shown: Any = [bar.get_width() for bar in axes.patches] if min(shape) == 1 else axes.images[0].get_array()
        assert np.asarray(shown) == pytest.approx(added.ravel() if min(shape) == 1 else added)
        assert len(axes.texts) == (added.size if 1 < min(shape) < 16 else 0)
    assert (tmp_path / "why.png").exists()


def test_the_words_of_a_query_stand_at_their_bars(drawn: list[Figure], tmp_path: Path) -> None:
    texts = write_text_data(tmp_path / "texts")
    storage = ["--storage", str(tmp_path / "storage")]
    assert main(["encode", "--recipe", "baseline-bm25", "--folder", str(texts), "--version", "v", *storage]) == 0
    assert main(["publish", "--version", "v", *storage]) == 0
    asked = ["query", "Hat, a red hat $5", "--local", *storage]
    assert main([*asked, "--plot-explanation", str(tmp_path / "why.png")]) == 0
    axes = drawn[0].axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["hat", "a", "red", "5"]
    widths = [bar.get_width() for bar in axes.patches]
    assert widths[0] > 0 < widths[2]
    assert widths[1] == widths[3] == 0
    assert axes.get_ylabel() == "word"


def test_the_command_draws_both(drawn: list[Figure], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plots = ["--plot", str(tmp_path / "scores.png"), "--plot-explanation", str(tmp_path / "why.png")]
    assert main(["query", "dog", "cake", "--local", "--storage", "emoji", "--cutoff", "mass", "0.9", *plots]) == 0
    said = capsys.readouterr().out
    assert f"drawn in {tmp_path}/scores.png" in said.replace("\n", "")
    assert [len(own.axes) for own in drawn] == [2, 5]  # two queries; four items and their scale
    for axes in drawn[0].axes:
        kept, cut = (len(np.asarray(one.get_offsets())) for one in axes.collections)
        assert kept > 0
        assert cut > 0
