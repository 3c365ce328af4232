"""MoPQ: what do codes trained to match find at equal bytes, and how fast are they searched?

    python -m jobs.benches.mopq quality --folder DATA --storage FOLDER [--data tldr wordnet] [--seeds 0 1 2]
    python -m jobs.benches.mopq speed
    python -m jobs.benches.mopq compressed --folder DATA --storage FOLDER

Held fixed in `quality`: a two-tower text encoder of 128 numbers under a dot product (one dense model per seed, from
which everything starts), batches of 512 pairs, Adam at 1e-3 for codebooks and 1e-4 for the encoder, 500 steps, start by
OPQ. One process stands for 8 workers. Weights and temperatures are the best of a grid on the validation queries of the
first data set and seed. R@k is the mean share of a test query's relevant items among the k best of the whole corpus.
An interrupted run goes on: what it recorded is not measured again, and trained codebooks are kept in `--storage`.

A yes, as in the paper: MoPQ with cross-device negatives above MoPQ in-batch above the best other method of 8 bytes in
R@10 (Table 3); loss of reconstruction and recall not monotone (Table 1); in-batch < NCS < DCS and selections all alike
(Table 5); more codebooks and codewords find more (Table 6).

`speed`: choosing codewords 20 times faster than by differences; look-up search over a million codes in 1.1 times
FAISS's own time, 1.3 times with 1,000 rescored; 16 codewords 4 times faster than 256.
`compressed`: the components of a trained Mixture of Logits as codes: at an eighth of the bytes at least 95% of the
hundred best of the vectors, its exact scan in at most 1.5 times the time.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
import tyro
from rich.console import Console

from jobs.benches import mopq_compressed, mopq_speed
from jobs.benches.mopq_models import KS, Bench, Encoded, Trained, codebooks, dense, encoded_densely
from jobs.benches.record import Record, recorded
from rails_ray.families.vector_items.storing import Method
from rails_ray.modules.quantizers.distill_vq import DistillVqConfig
from rails_ray.modules.quantizers.dpq import DpqConfig
from rails_ray.modules.quantizers.dqn import DqnConfig
from rails_ray.modules.quantizers.dvsq import DvsqConfig
from rails_ray.modules.quantizers.faiss_fit import NAMES_BY_BYTES, fit_by_faiss
from rails_ray.modules.quantizers.jpq import JpqConfig
from rails_ray.modules.quantizers.mopq import MopqConfig
from rails_ray.modules.quantizers.opq import fit_opq
from rails_ray.modules.quantizers.pq import fit_pq
from rails_ray.modules.quantizers.product import ProductQuantizer
from rails_ray.modules.quantizers.spq import SpqConfig
from rails_ray.storage.filesystem import Storage

GRIDS: dict[str, tuple[Method, ...]] = {
    "dqn": tuple(DqnConfig(reconstruction_weight=weight) for weight in (1.0, 0.1, 0.01, 0.001)),  # Table 1
    "dvsq": tuple(DvsqConfig(distortion_weight=weight) for weight in (1.0, 10.0, 100.0)),
    "spq": (
        SpqConfig(tau=0.01, disagreement_weight=0.1),
        SpqConfig(tau=0.003, disagreement_weight=0.1),
        SpqConfig(tau=0.001, disagreement_weight=0.1),
    ),
    "dpq": (
        DpqConfig(tau=0.1, reconstruction_weight=0.1),
        DpqConfig(tau=0.01, reconstruction_weight=0.1),
        DpqConfig(tau=0.003, reconstruction_weight=0.1),
    ),
    "distill_vq": (
        DistillVqConfig(tau=0.1, distillation_weight=1.0),
        DistillVqConfig(tau=0.01, distillation_weight=1.0),
        DistillVqConfig(tau=0.003, distillation_weight=1.0),
    ),
    "jpq": (JpqConfig(),),
    "mopq": (
        MopqConfig(tau=0.1, codeword_weight=0.01),
        MopqConfig(tau=0.01, codeword_weight=0.01),
        MopqConfig(tau=0.003, codeword_weight=0.01),
        MopqConfig(tau=0.003, codeword_weight=0.0),
        MopqConfig(tau=0.003, codeword_weight=0.01, dense_weight=1.0),
        MopqConfig(tau=0.003, codeword_weight=0.0, dense_weight=1.0),
    ),
}
ON_WORDNET = ("dqn", "spq", "mopq")
BEST_OTHERS = ("distill_vq", "spq")  # with cross-device negatives, to tell those from the loss
SELECTIONS = ("cosine", "inner_product", "bilinear")
LONGER, LARGER = 2000, 2048  # steps, and pairs of a batch, on WordNet: does DCS need more of them?
SIZES = ((4, 128), (4, 256), (8, 128), (16, 128), (16, 256))  # beside 8 x 256


@dataclass(frozen=True)
class Data:
    """
    folder: holds the data sets.
    storage: where trained models are kept.
    """

    folder: Path
    storage: Path


@dataclass(frozen=True)
class Quality(Data):
    """What codes find."""

    data: tuple[Literal["tldr", "wordnet"], ...] = ("tldr", "wordnet")
    seeds: tuple[int, ...] = (0, 1, 2)


@dataclass(frozen=True)
class Speed:
    """How long a search takes.

    num_items: codes that are searched.
    repeats: timings of each in turns; the median counts.
    """

    num_items: int = 1_000_000
    repeats: int = 7


@dataclass(frozen=True)
class Compressed(Data):
    """What the components of a mixture lose as codes."""

    repeats: int = 7


IDENTITY = (
    "data",
    "seed",
    "method",
    "negatives",
    "bytes",
    "config",
    "num_subspaces",
    "num_codewords",
    "steps",
    "batch",
)


def identity(row: dict[str, Any]) -> str:
    """Equal for two measurements of the same thing."""
    known = {"batch": Trained.batch_size} | row if "config" in row else row  # the first rows do not say it
    return json.dumps([known.get(name) for name in IDENTITY], sort_keys=True)


@dataclass(frozen=True)
class Rows:
    """Rows of one data set and seed. What was recorded before is not measured again."""

    bench: Bench
    record: Record
    known: dict[str, dict[str, Any]] = field(
        default_factory=lambda: {identity(row): row for row in recorded("mopq") if "method" in row}
    )

    def row(self, what: dict[str, Any], measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The row of `what`, and of what `measure` finds."""
        own = {"data": self.bench.data, "seed": self.bench.seed, **what}
        known = self.known.get(identity(json.loads(json.dumps(own))))
        if known is not None:
            return known
        own |= measure()
        self.record.row(**own)
        return own


def main(arguments: Quality | Speed | Compressed) -> None:
    if isinstance(arguments, Speed):
        mopq_speed.main(arguments.num_items, arguments.repeats)
        return
    if isinstance(arguments, Compressed):
        mopq_compressed.main(arguments.folder, arguments.storage, arguments.repeats)
        return
    torch.set_num_threads(2)
    record, console = Record("mopq"), Console()
    best = dict[str, Method]()
    for data in arguments.data:
        for seed in arguments.seeds:
            bench = Bench(data, arguments.folder, Storage(str(arguments.storage)), seed)
            for row in measured(bench, Rows(bench, record), best):
                console.print(f"{data} {seed} {row['method']:12} {row['negatives']:8} {row['bytes']:4}", row["R@10"])


def measured(bench: Bench, rows: Rows, best: dict[str, Method]) -> Iterator[dict[str, Any]]:
    """Rows of a data set and seed. The first seed fills in the best weights."""
    config, read = dense(bench)
    plain = encoded_densely(bench, config, read)
    yield rows.row({"method": "flat", "negatives": "none", "bytes": 512}, lambda: plain.recalls(plain.items))
    for name, fit in (("pq", fit_pq), ("opq", fit_opq)):
        for num_subspaces in (8, 16):
            yield rows.row(
                {"method": name, "negatives": "none", "bytes": num_subspaces},
                lambda fit=fit, parts=num_subspaces: found(plain, fit(plain.sample(), parts, 256, seed=bench.seed)),
            )

    def trained(how: Trained) -> dict[str, Any]:
        return rows.row(facts(how), lambda: row_of(*codebooks(bench, config, read, how)))

    names = GRIDS if bench.data == "tldr" else ON_WORDNET
    is_first = not best
    for name in names:
        grid = GRIDS[name] if name not in best else (best[name],)
        tried = []
        for method in grid:
            tried.append(trained(how_of(method)))
            yield tried[-1]
        if is_first:
            best[name] = max(zip(tried, grid, strict=True), key=lambda pair: pair[0]["valid R@10"])[1]
    for negatives in ("ncs", "dcs"):
        yield trained(replace(how_of(best["mopq"]), negatives=negatives))
    for name in (name for name in BEST_OTHERS if name in best):
        yield trained(replace(how_of(best[name]), negatives="dcs"))
    if bench.data == "wordnet" and bench.seed == 0:
        for negatives in ("in_batch", "dcs"):
            yield trained(replace(how_of(best["mopq"]), negatives=negatives, num_steps=LONGER))
            yield trained(replace(how_of(best["mopq"]), negatives=negatives, batch_size=LARGER))
    if bench.data == "tldr" and is_first:
        for selection in SELECTIONS:
            yield trained(how_of(replace(best["mopq"], selection=selection)))
        for num_subspaces, num_codewords in SIZES:
            for name in ("mopq", "spq"):
                sizes = {"num_subspaces": num_subspaces, "num_codewords": num_codewords}
                yield trained(replace(how_of(best[name]), **sizes))
    yield from by_faiss(bench, rows, plain)


def how_of(method: Method) -> Trained:
    """JPQ's codes stay, whatever the encoder becomes: it is not trained."""
    return Trained(method=method, when="after" if isinstance(method, JpqConfig) else "jointly")


def facts(how: Trained) -> dict[str, Any]:
    """What tells trained codebooks from others."""
    return {
        "method": how.method.kind,
        "negatives": how.negatives,
        "bytes": how.num_subspaces,
        "config": asdict(how.method),
        "num_subspaces": how.num_subspaces,
        "num_codewords": how.num_codewords,
        "steps": how.num_steps,
        "batch": how.batch_size,
    }


def row_of(encoded: Encoded, quantizer: ProductQuantizer, seconds: float) -> dict[str, Any]:
    """What trained codebooks find, and the vectors of the encoder that was trained with them."""
    return {
        "cpu_s": seconds,
        "flat R@10": encoded.recalls(encoded.items)["R@10"],
        **found(encoded, quantizer),
    }


def found(encoded: Encoded, quantizer: ProductQuantizer) -> dict[str, Any]:
    """What codes of a quantizer find."""
    read_back = quantizer.decode(quantizer.encode(encoded.items))
    return {
        "reconstruction_loss": float((encoded.items - read_back).square().sum(dim=1).mean()),
        "valid R@10": encoded.recalls(read_back, "valid")["R@10"],
        **encoded.recalls(read_back),
    }


def by_faiss(bench: Bench, rows: Rows, plain: Encoded) -> Iterator[dict[str, Any]]:
    """What FAISS finds by its own estimates at equal bytes: on WordNet only RaBitQ; LSQ, which is slow, for the first
    seed only."""
    for num_bytes, names in NAMES_BY_BYTES.items():
        for name in names:
            is_slow = name.startswith("LSQ")
            if (bench.data == "wordnet" and "RaBitQ" not in name) or (is_slow and bench.seed):
                continue
            what = {"method": name, "negatives": "none", "bytes": num_bytes}
            yield rows.row(what, lambda name=name: found_by_faiss(name, plain))


def found_by_faiss(name: str, plain: Encoded) -> dict[str, Any]:
    """What FAISS finds with the quantizer of a name."""
    quantizer = fit_by_faiss(name, plain.sample())
    _, rows = quantizer.search(plain.queries["test"][0], plain.items, KS[-1])
    read_back = quantizer.decode(quantizer.encode(plain.items))
    return {
        "sa_code_size": quantizer.num_bytes,
        "reconstruction_loss": float((plain.items - read_back).square().sum(dim=1).mean()),
        **plain.recalls_of(rows),
    }


if __name__ == "__main__":
    commands = {"quality": Quality, "speed": Speed, "compressed": Compressed}
    main(tyro.extras.subcommand_cli_from_dict(commands, description=__doc__))
