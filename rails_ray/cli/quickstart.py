"""Every stage on packaged emoji: train, encode, publish, serve, query, measure."""

import time
from contextlib import ExitStack
from dataclasses import dataclass, replace

from rich.console import Console

from rails_ray import on_ray
from rails_ray.cli import rendering
from rails_ray.data import emoji
from rails_ray.data.dataset import Texts
from rails_ray.data.encoding import query_batches
from rails_ray.families.config import RunConfig
from rails_ray.families.data import read_data
from rails_ray.families.recipes.emoji import emoji_mol
from rails_ray.families.training_family import training_family
from rails_ray.families.version import Version
from rails_ray.on_ray import liveness
from rails_ray.on_ray.cluster import cluster
from rails_ray.on_ray.serving.app import served
from rails_ray.on_ray.serving.plan import ServeArgs
from rails_ray.search.spec import SearchSpec
from rails_ray.serving import client
from rails_ray.serving.http.ports import check_port
from rails_ray.storage.described import Manifest
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.runs import Run
from rails_ray.training.evaluation.agreement import recall_at_k
from rails_ray.training.evaluation.calibrating import CalibrationReport
from rails_ray.training.evaluation.report import Report

HOST = "127.0.0.1"
COMPARED_K = 10
SHOWN_COVERAGE = 0.9
NUM_COMPARED = 256  # held-out queries whose served answers are compared with offline brute force


@dataclass(frozen=True)
class Made:
    """The results of the stages before serving.

    mol, dot: report and seconds of training of the published mixture, and of a dot product that stores as many numbers
        of an item.
    """

    manifest: Manifest
    calibrated: CalibrationReport
    mol: tuple[Report, float]
    dot: tuple[Report, float]


def quickstart(storage: str, *, num_steps: int | None, port: int, keep: bool, console: Console) -> None:
    """Run the quickstart and print as it goes.

    Args:
        storage: root of the storage to write to.
        num_steps: training steps; by default each recipe's own.
        keep: go on serving until Ctrl-C.

    Raises:
        UnavailableError: if the port is taken.
    """
    check_port(HOST, port)
    started = time.monotonic()
    with ExitStack() as stack:
        with rendering.spinner(console, "start Ray"):
            is_own = stack.enter_context(cluster())
        made = _make(storage, num_steps, console)
        with rendering.spinner(
            console, "deploy a router and 2 shards with Ray Serve, on loopback and without API keys"
        ):
            arguments = ServeArgs(storage=storage, version=made.manifest.version, allow_anonymous=True)
            url = stack.enter_context(served(arguments, host=HOST, port=port, leave_serve=is_own))
        with rendering.spinner(console, "ask over HTTP"):
            shown = rendering.SHOWN_ITEMS
            queries = [{"text": text} for text in emoji.SHOWCASE]
            cut = client.search(url, queries)
            best = client.search(url, queries, k=shown, cutoff={"top_k": shown})
            recall = _served_recall(url, storage, made.manifest)
        title = "Emoji by name: none of these queries was trained on"
        console.print("", rendering.answers(emoji.SHOWCASE, cut, best, title), "", sep="\n")
        _print_measures(made, recall, console)
        if keep:
            _keep(url, console)
        with rendering.spinner(console, "stop"):
            stack.close()
    console.print(
        f"all in {time.monotonic() - started:.0f} s; what it made lies in {Storage(storage)}",
        soft_wrap=True,
        markup=False,
    )


def _make(storage: str, num_steps: int | None, console: Console) -> Made:
    mixture = emoji_mol()
    as_many = training_family(mixture).as_dot_product()
    assert as_many is not None
    mol = _train(mixture, storage, num_steps, console)
    dot = _train(replace(as_many, name="emoji-dot-of-as-many-numbers"), storage, num_steps, console)
    with rendering.spinner(console, "encode the items with Ray Data"):
        encoded = on_ray.encode(storage, mol.name, num_shards=2)
    with rendering.spinner(console, "calibrate its cut-offs on validation queries"):
        calibrated = on_ray.calibrate(storage, version=encoded.version)
    manifest = on_ray.publish(storage, encoded.version)
    console.print(f"  published {manifest.version}: {manifest.num_live} items in 2 shards", highlight=False)
    with rendering.spinner(console, "measure both on held-out queries"):
        return Made(
            manifest,
            calibrated,
            (on_ray.evaluate(storage, version=manifest.version), mol.training["seconds"]),
            (on_ray.evaluate(storage, run=dot.name), dot.training["seconds"]),
        )


def _print_measures(made: Made, recall: dict[str, float], console: Console) -> None:
    title = f"{made.mol[0].num_queries} held-out queries; equal numbers of an item, steps, negatives and seed"
    console.print(rendering.reports([("Mixture of Logits", *made.mol), ("dot product", *made.dot)], title, ks=(1, 10)))
    console.print(
        f"cut-off: mass {made.mol[0].cutoff_mass:.6g} of a relevant item's score, the best by F1 in validation",
        soft_wrap=True,
    )
    (covered,) = (one for one in made.calibrated.measured if one.segment is None and one.nominal == SHOWN_COVERAGE)
    (lists,) = (one for one in made.calibrated.lists if one.nominal == SHOWN_COVERAGE)
    console.print(
        f"calibrated: coverage {covered.nominal:g} keeps {covered.coverage:.4f} of the relevant "
        f"({covered.low_both:.4f} to {covered.high_both:.4f}), in lists of {lists.mean:.1f} items",
        soft_wrap=True,
    )
    for method, value in recall.items():
        console.print(f"served top-{COMPARED_K} by {method}: recall {value:.4f} against offline brute force")


def _train(config: RunConfig, storage: str, num_steps: int | None, console: Console) -> Run:
    if num_steps is not None:
        config = replace(config, training=replace(config.training, num_steps=num_steps))
    with rendering.bar(console, f"train {config.name}, 2 workers") as on_progress:
        return on_ray.train(config, storage, on_progress=on_progress)


def _served_recall(url: str, storage: str, manifest: Manifest) -> dict[str, float]:
    """Recall of the served answers against brute force in this process, by method."""
    version = Version(Storage(storage), manifest)
    model, items = version.model, version.items()
    data = read_data(version.config, version.storage)
    texts = data.queries["test"].head(NUM_COMPARED).inputs
    assert isinstance(texts, Texts)
    searcher = version.family.searcher(model.similarity, items.state)
    expected = [
        [items.item_ids[row] for row in rows]
        for _, query in query_batches(model, texts)
        for rows in searcher.search(query, SearchSpec(COMPARED_K)).item_rows.tolist()
    ]
    recall = {}
    for method in searcher.methods:
        answer = client.search(
            url, [{"text": text} for text in texts], k=COMPARED_K, method=method, cutoff={"top_k": COMPARED_K}
        )
        recall[method] = recall_at_k([result["items"] for result in answer["results"]], expected)
    return recall


def _keep(url: str, console: Console) -> None:
    body = '{"queries": [{"text": "pizza"}], "k": 10}'
    console.print(f"\nserving at {url}, without keys and to this machine only, until Ctrl-C; try:\n")
    console.print(
        f"  curl -s {url}/v1/search -H 'content-type: application/json' -d '{body}'", highlight=False, soft_wrap=True
    )
    liveness.stay(lambda: None, console.print, exit_code=1)
