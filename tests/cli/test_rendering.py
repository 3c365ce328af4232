from io import StringIO

from rich.console import Console
from rich.progress import Progress

from rails_ray.cli import rendering
from rails_ray.cli.rendering import LOG_S, Bar
from rails_ray.cutoffs.measuring import LEVELS, Measured
from rails_ray.cutoffs.temperatures import Factor, Factors
from rails_ray.search.measured import SearchFigures
from rails_ray.training.evaluation.calibrating import ShareKept
from support.clocks import clock_of
from support.responses import search_response


def progress_to(text: StringIO, is_terminal: bool) -> Progress:
    """One that draws nothing by itself."""
    return Progress(console=Console(file=text, width=80, force_terminal=is_terminal), auto_refresh=False)


def test_a_bar_in_a_log_is_a_line_every_so_many_seconds() -> None:
    text = StringIO()
    times = (0.0, 1.0, LOG_S - 0.1, LOG_S, LOG_S + 0.1, 2 * LOG_S - 0.1, 2 * LOG_S + 5, 3 * LOG_S, 3 * LOG_S + 5)
    bar = Bar(progress_to(text, False), "train demo", clock_of(*(100 + time for time in times)))
    for done in range(1, len(times)):
        bar(done, 9, f"loss 0.{done}")
    assert text.getvalue().splitlines() == [
        "  train demo 3/9 loss 0.3",
        "  train demo 6/9 loss 0.6",  # 15 s after the last one, and the next is due 10 s after this one
        "  train demo 8/9 loss 0.8",
    ]


def test_a_bars_line_is_no_markup() -> None:
    text = StringIO()
    bar = Bar(progress_to(text, False), "train [red]x[/red]", clock_of(0, LOG_S))
    bar(1, 2, "[/b] going on")
    assert text.getvalue() == "  train [red]x[/red] 1/2 [/b] going on\n"


def test_a_bar_in_a_terminal_has_no_lines_between() -> None:
    text = StringIO()
    bar = Bar(progress_to(text, True), "train demo", clock_of(0, LOG_S, 2 * LOG_S))
    bar(1, 2, "")
    bar(2, 2, "")
    assert text.getvalue() == ""


def test_pieces_are_a_line_each_and_their_mean() -> None:
    text = StringIO()
    rows = [
        {"piece": "chunk-000", "loss": 1.5, "bucket_recall": 0.25, "seconds": 3.0},
        {"piece": "chunk-001", "loss": 0.5, "bucket_recall": 0.75, "seconds": 6.0},
    ]
    Console(file=text, width=80).print(rendering.pieces(rows, "run codes"))
    words = [line.replace("│", " ").replace("┃", " ").split() for line in text.getvalue().splitlines()]
    for expected in (
        "piece loss bucket recall time",
        "chunk-000 1.500 0.2500 3.0 s",
        "chunk-001 0.500 0.7500 6.0 s",
        "mean 1.000 0.5000 4.5 s",
    ):
        assert expected.split() in words
    assert "bucket recall: held out, of the 100 (or 2%) most probable" in " ".join(text.getvalue().split())


def test_pieces_of_different_kinds_have_measures_of_their_own() -> None:
    text = StringIO()
    rows = [
        {"piece": "encoder", "mrr": 0.5, "hit_rate": {"1": 0.25}, "seconds": 3.0},
        {"piece": "quantizer", "distortion": 0.125, "seconds": 1.0},
    ]
    Console(file=text, width=80).print(rendering.pieces(rows, "run r"))
    words = [line.replace("│", " ").replace("┃", " ").split() for line in text.getvalue().splitlines()]
    for expected in ("piece mrr time distortion", "encoder 0.5000 3.0 s", "quantizer 1.0 s 0.1250", "mean 2.0 s"):
        assert expected.split() in words


def test_what_was_reported_last_is_a_line_when_the_work_ends() -> None:
    text = StringIO()
    with rendering.bar(Console(file=text, width=80, force_terminal=False), "encode demo") as on_progress:
        on_progress(1, 3, "parts")
        on_progress(3, 3, "parts")
    (line,) = text.getvalue().splitlines()
    for expected in ("encode demo", "3/3", "parts"):
        assert expected in line


def test_what_shares_keep_stands_beside_the_factor() -> None:
    measured = [Measured(level, None, level - 0.01, 0.0, 1.0, 0.0, 1.0, 50) for level in LEVELS]
    kept = [
        ShareKept("mass", "held_out", 1.0, measured, []),
        ShareKept("mass", "held_out", 2.46, measured, []),
        ShareKept("nucleus", None, 1.98, measured, []),
    ]
    factors = Factors({"held_out": Factor(2.46, 2.40, 2.52, 50)}, Factor(1.98, 1.95, 2.01, 50))
    text = StringIO()
    Console(file=text, width=100).print(rendering.shares(kept, factors, "shares"))
    lines = [" ".join(line.replace("│", " ").split()) for line in text.getvalue().splitlines()]
    assert "mass over held_out 1, as trained 0.4900 0.7900 0.8900 0.9400 0.9800" in lines
    assert "mass over held_out 2.46 +- 0.06 0.4900 0.7900 0.8900 0.9400 0.9800" in lines
    assert "nucleus 1.98 +- 0.03 0.4900 0.7900 0.8900 0.9400 0.9800" in lines


def test_an_item_without_a_title_is_shown_by_its_id() -> None:
    text, answer = StringIO(), search_response(items=[7, 8], titles=["a hat", ""], scores=[0.5, 0.25], num_kept=2)
    Console(file=text, width=80).print(rendering.answers(["hat"], answer, answer, "v"))
    assert "a hat 0.50" in text.getvalue()
    assert " 8 0.25" in text.getvalue()


def test_searches_stand_beside_the_scan_of_their_own_k() -> None:
    scan = SearchFigures("brute_force", {}, 10, 200, 1.0, 1.0, 1.0, 1.0, 4.0)
    graph = SearchFigures("ann", {"ef_search": 64}, 10, 200, 0.995, 0.98, 0.999, 0.0, 0.5)
    long = SearchFigures("brute_force", {}, 100, 200, 1.0, 1.0, 1.0, 1.0, 6.0)
    text = StringIO()
    Console(file=text, width=120).print(rendering.searches([scan, graph, long], "v1", graph))
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.getvalue().splitlines() if "│" in line]
    assert rows == [
        ["", "brute_force", "", "10", "1.0000", "no item missed", "100.0%", "4.00", "1.0x"],
        ["best", "ann", "ef_search 64", "10", "0.9950", "0.9800 to 0.9990", "0.0%", "0.50", "8.0x"],
        ["", "brute_force", "", "100", "1.0000", "no item missed", "100.0%", "6.00", "1.0x"],
    ]
