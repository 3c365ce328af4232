"""Predicted times against the rows of the benches and published figures."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.benches import table5
from rails_ray.cli.planning import measured
from rails_ray.cli.planning.machines import GPU_CALL_S, GPUS, Cpu, Gpu, cpu_units, machine
from rails_ray.cli.planning.measured import Figure, MeasuredSearch
from rails_ray.cli.planning.plans import PlannedCorpus, may_widen
from rails_ray.cli.planning.searches import EF_SEARCH, METHODS, SAMPLE_ITEMS, Search, SearchWork, work
from rails_ray.cli.planning.shapes import Names, Shape
from rails_ray.families.recipes.emoji import MIXTURE, emoji_mol
from rails_ray.search.indexes import ivf
from support.planned import rows

# the measured rows


def figures() -> list[Figure]:
    return [*(row.figure for row in measured.TIMED), measured.SEARCHED_OVER_HTTP.figure, measured.REQUESTS_PER_S]


@pytest.mark.parametrize("figure", figures(), ids=lambda figure: f"{figure.file} {list(figure.where.values())}")
def test_a_copied_figure_is_that_of_its_row(figure: Figure) -> None:
    of_run = [row for row in rows(figure.file) if row["execution"] == figure.execution]
    (environment,) = [row for row in of_run if row.get("kind") == "environment"]
    assert environment["at"].startswith(figure.date)
    assert (environment["cores"], environment["gpu"]) == (measured.CORES, None)
    (value,) = [row for row in of_run if figure.where.items() <= row.items()]
    for name in figure.name.split("."):
        value = value[name]
    assert figure.value == value


@pytest.mark.parametrize(
    "row", [row for own in measured.ON_GPU.values() for row in own], ids=lambda row: str([*row.figure.where.values()])
)
def test_a_figure_of_a_gpu_is_that_of_its_row(row: MeasuredSearch) -> None:
    figure = row.figure
    of_run = [own for own in rows(figure.file) if own["execution"] == figure.execution]
    (environment,) = [own for own in of_run if own.get("kind") == "environment"]
    assert environment["at"].startswith(figure.date)
    assert environment["gpu"] == measured.GPU_NAME
    (found,) = [own for own in of_run if figure.where.items() <= own.items()]
    assert (found[figure.name], found["num_items"]) == (figure.value, row.num_items)
    assert (found["recall@100"], row.search.k) == (1.0, 100)


def test_all_shapes_that_were_measured_on_a_gpu_are_copied() -> None:
    of_run = {own["execution"]: own["gpu"] for own in rows("gpu.jsonl") if own.get("kind") == "environment"}
    there = [own for own in rows("gpu.jsonl") if own.get("method") == "on_gpu"]
    assert {of_run[own["execution"]] for own in there} == {measured.GPU_NAME}
    copied = [row.figure for own in measured.ON_GPU.values() for row in own]
    assert {(own["shape"], own["batch"]) for own in there} == {
        (row.where["shape"], row.where["batch"]) for row in copied
    }


def test_other_methods_took_longer_on_a_gpu_than_the_exact_scan_but_for_one() -> None:
    """As the note of a plan for a GPU says."""
    measured_there = [own for own in rows("gpu.jsonl") if "latency_ms" in own]
    scans = {
        (own["execution"], own["shape"], own["batch"]): own["latency_ms"]
        for own in measured_there
        if own["method"] == "on_gpu"
    }
    methods = ("two_pass", "per_embedding", "average", "combined", "gated")
    others = [own for own in measured_there if own["method"] in methods]
    compared = [(own, scans.get((own["execution"], own["shape"], own["batch"]))) for own in others]
    assert sum(scan is not None for _, scan in compared) == 30
    sooner = [own for own, scan in compared if scan is not None and own["latency_ms"] < scan]
    assert [(own["method"], own["shape"], own["batch"]) for own in sooner] == [("average", "nq320k", 32)]


def test_the_shapes_are_those_of_the_benches() -> None:
    assert measured.K == table5.K
    for name, own in table5.SHAPES.items():
        num_items, shape = measured.SHAPES[name]
        assert (num_items, shape.width) == (own.num_items, own.width)
        assert (shape.num_query_components, shape.num_item_components) == own.components
        assert shape.gate_hidden == table5.MixtureOfLogitsConfig().gate_hidden
    emoji, components = measured.SEARCHED_OVER_HTTP.shape, emoji_mol().family.components
    assert (emoji.num_query_components, emoji.num_item_components) == (2, 2)
    assert (emoji.width, emoji.gate_hidden) == (components.width, MIXTURE.gate_hidden)


def searched_rows() -> list[tuple[PlannedCorpus, float]]:
    """(What was searched, ms) of each row of a method that the planner knows."""
    found = []
    for row in rows("table5.jsonl"):
        if row.get("method") in METHODS and row["width"] != "bf16 gates":  # two_pass, naive: not planned for
            num_items, shape = measured.SHAPES[row["shape"]]
            search = measured.search_of(row["method"], row["width"], row["batch"])
            found.append((PlannedCorpus(num_items, shape, search, Cpu(), Names()), row["latency_ms"]))
    return found


def test_predicted_times_lie_within_the_stated_factor_of_all_measured_rows() -> None:
    kept = [(own, ms) for own, ms in searched_rows() if not may_widen(own)]
    assert len(kept) >= 100
    assert {own.search.method for own, _ in kept} == set(METHODS) - {"ann"}, "which does what average does"
    assert {own.search.batch for own, _ in kept} == {1, 32}
    assert {own.shape for own, _ in kept} == {shape for _, shape in measured.SHAPES.values()}
    ratios = {(own, ms): 1000 * own.search_s(own.num_items) / ms for own, ms in kept}
    worst = max(ratios.items(), key=lambda one: max(one[1], 1 / one[1]))
    assert max(worst[1], 1 / worst[1]) <= measured.WORST_FACTOR, worst
    assert sorted(ratios.values())[len(ratios) // 2] == pytest.approx(1, abs=0.1), "neither too long nor too short"


def test_only_lists_that_may_be_widened_are_left_out() -> None:
    """They search again, which nobody knows beforehand: what is planned is then too short by far."""
    left_out = [own for own, _ in searched_rows() if may_widen(own)]
    assert len(left_out) <= len(searched_rows()) / 5
    for own in left_out:
        assert own.search.num_per_embedding * own.shape.num_pairs < 4 * measured.K


def test_seven_rows_give_seven_units() -> None:
    assert all(unit > 0 for unit in cpu_units())
    for row in measured.TIMED:
        seconds = Cpu().seconds(work(row.shape, row.search, row.num_items), row.shape.dtype)
        assert 1000 * seconds == pytest.approx(row.figure.value)


def test_rows_of_other_benches_lie_within_a_factor_of_two() -> None:
    def ratio(num_items: int, shape: Shape, search: Search, ms: float) -> float:
        return 1000 * PlannedCorpus(num_items, shape, search, Cpu(), Names()).search_s(num_items) / ms

    (flat,) = [row for row in rows("solar.jsonl") if row.get("method") == "flat, torch" and row["flat_fraction"] == 1]
    dense = Shape(num_query_components=1, num_item_components=1, width=1600)
    ms = sorted(flat["latency_ms"])[1] * flat["batch"]
    ratios = [ratio(flat["num_items"], dense, Search(k=100, batch=flat["batch"]), ms)]
    mixtures = [row for row in rows("threshold.jsonl") if row.get("method") == "top-k"]
    for row in mixtures:
        search = Search(k=row["num_above"], batch=row["batch"])
        ratios.append(ratio(*measured.SHAPES["small"], search, row["latency_ms"]))
    assert len(mixtures) >= 2
    assert all(0.5 < own < 2 for own in ratios), ratios


def test_indexes_of_many_items_lie_within_a_factor_of_two() -> None:
    """ivf with the nprobe of a plan, between the two rows beside it; hnsw with the ef_search of a plan."""
    own = [row for row in rows("indexes.jsonl") if row.get("num_items", 0) > 100_000 and "search" not in row]
    own = [row for row in own if row["execution"] == own[-1]["execution"] and row.get("storage") == "fp32"]
    for corpus in ("clustered", "wordnet"):
        of_lists = [row for row in own if (row["corpus"], row["kind"]) == (corpus, "ivf")]
        [of_graph] = [
            row for row in own if (row["corpus"], row["kind"]) == (corpus, "hnsw") and row["ef_search"] == EF_SEARCH
        ]
        num_items, width = of_graph["num_items"], of_graph["width"]
        usual = ivf.num_lists(0, num_items, min(num_items, SAMPLE_ITEMS)) ** 0.5
        of_lists_ms = np.interp(usual, *([row[name] for row in of_lists] for name in ("nprobe", "ms")))
        shape = Shape(num_query_components=1, num_item_components=1, width=width)
        for index, ms in (("ivf", of_lists_ms), ("hnsw", of_graph["ms"])):
            search = Search(k=10, batch=32, method="ann", index=index, num_candidates=10)
            assert 0.5 <= 1000 * PlannedCorpus(num_items, shape, search, Cpu(), Names()).search_s(num_items) / ms <= 2


# GPUs


def test_a_gpu_takes_as_long_as_its_longest_part() -> None:
    gpu = Gpu(
        name="g",
        memory_bytes=1e9,
        bytes_per_s=1e9,
        half_flops=4e12,
        float_flops=1e12,
        num_multiprocessors=10,
        clock_hz=1e9,
        efficiency=0.5,
    )
    dot = SearchWork(product_flops=2e12, special_functions=0, read_bytes=0, gathered_bytes=0, selected_scores=0)
    done = SearchWork(
        product_flops=2e12, special_functions=3.2e11, read_bytes=5e8, gathered_bytes=4e8, selected_scores=1e7
    )
    assert gpu.parts(done, "bf16") == {"reading": 0.98, "products": 0.5, "special functions": 2.0}
    assert gpu.parts(done, "fp32")["products"] == 0.5
    assert gpu.parts(dot, "fp32")["products"] == 2.0
    assert gpu.seconds(done, "bf16") == 4.0 + GPU_CALL_S


def test_what_is_predicted_for_an_h100_lies_near_its_rows() -> None:
    """Within a third where d is at most 128; a wide d is read again for each few queries."""
    own = [row for row in rows("gpu.jsonl") if row.get("method") == "on_gpu"]
    assert {(row["shape"], row["batch"]) for row in own} == {
        (shape, batch) for shape in ("books", "ml20m", "nq320k") for batch in (1, 32)
    }
    for row in own:
        num_items, shape = measured.SHAPES[row["shape"]]
        done = work(shape, Search(k=100, batch=row["batch"]), num_items)
        ratio = row["latency_ms"] / (1000 * GPUS["h100"].seconds(done, "fp32"))
        assert 1 / 1.6 < ratio < (1.35 if shape.width <= 128 else 3.5), (row["shape"], row["batch"], ratio)


def on_h100(shape: str, num_items: int, batch: int, gpu: str = "h100", **others: float) -> PlannedCorpus:
    return PlannedCorpus(num_items, measured.SHAPES[shape][1], Search(batch=batch), machine(gpu, **others), Names())


def test_a_shape_that_was_measured_takes_what_its_rows_say() -> None:
    for row in (one for both in measured.ON_GPU.values() for one in both):
        corpus = PlannedCorpus(row.num_items, row.shape, row.search, GPUS["h100"], Names())
        assert 1000 * corpus.search_s(row.num_items) == pytest.approx(row.figure.value)


@given(st.sampled_from(["books", "ml20m", "nq320k"]), st.integers(1, 10**9), st.integers(1, 1000))
def test_more_items_and_more_queries_take_longer_in_proportion(shape: str, num_items: int, batch: int) -> None:
    own = on_h100(shape, num_items, batch)
    above = own.search_s(num_items) - GPU_CALL_S
    assert above > 0
    assert own.search_s(3 * num_items) - GPU_CALL_S == pytest.approx(3 * above)
    more = [on_h100(shape, num_items, size).search_s(num_items) for size in (batch, batch + 1, batch + 2)]
    assert more[0] < more[1] < more[2]
    assert more[1] == pytest.approx((more[0] + more[2]) / 2)


def test_a_roofline_stands_for_what_was_not_measured() -> None:
    num_items, shape = measured.SHAPES["books"]
    known = on_h100("books", num_items, 8)
    assert known.rows_of_gpu is not None
    assert replace(known, machine=machine("h100", memory_gb=40)).rows_of_gpu is not None
    for unknown in (
        on_h100("books", num_items, 8, gpu="h200"),
        on_h100("books", num_items, 8, efficiency=0.4),
        on_h100("small", num_items, 8, gpu="none"),
        replace(known, shape=replace(shape, dtype="fp16")),
        replace(known, shape=replace(shape, gate_hidden=64)),
        replace(known, shape=Shape(num_query_components=1, num_item_components=1, width=32)),
        replace(known, search=Search(method="average", batch=8)),
        replace(known, search=Search(k=101, batch=8)),
    ):
        assert unknown.rows_of_gpu is None
        done = work(unknown.shape, unknown.search, num_items)
        assert unknown.search_s(num_items) == unknown.machine.seconds(done, unknown.shape.dtype)


def test_the_clocks_are_those_that_give_the_published_fp32() -> None:
    for gpu in GPUS.values():
        lanes = 64 if gpu.name.startswith("a100") else 128
        assert 2 * lanes * gpu.num_multiprocessors * gpu.clock_hz == pytest.approx(gpu.float_flops, rel=0.01)


def test_the_scan_of_books_is_limited_by_special_functions_on_an_h200() -> None:
    """At 1.755 GHz, 674,044 x 32 pairs of 256 functions take 1.49 ms, 16 a clock on each of 132 multiprocessors."""
    num_items, shape = measured.SHAPES["books"]
    slow = replace(GPUS["h200"], clock_hz=1.755e9)
    parts = slow.parts(work(replace(shape, dtype="bf16"), Search(k=100, batch=32), num_items), "bf16")
    assert max(parts, key=lambda name: parts[name]) == "special functions"
    assert parts["special functions"] == pytest.approx(1.49e-3, rel=0.01)
