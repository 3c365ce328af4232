"""Training steps on this device: how many a second, and what share of the limit of its matrix products.

A step is the training loop's (which is not installed on a bare machine, as it keeps checkpoints): the batch is moved,
the loss taken and looked at, AdamW steps. Batches are drawn beforehand by the product's samplers from synthetic data,
and how long one takes to draw is told beside it. Products are counted by torch's `FlopCounterMode`, forward and
backward; the limit they are compared with is that of the precision, though similarities and losses stay in float32.

A mixture's scores and gradient are computed by torch's operators (`plain`), and where all queries share the items also
by one kernel (`fused`), whose products are not counted. On a GPU the blocks of a model of histories are compiled, too.

Where a batch does not fit into memory it is halved until it does; the row says at which sizes it did not.
"""

import gc
import itertools
import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from jobs.benches.gpu_measuring import DTYPES, Bench, Case, median_ms, peak_mb, products_in, work_of_the_host
from rails_ray.data.batch import PairSampler, WindowSampler
from rails_ray.data.buckets import BucketSampler
from rails_ray.data.in_batch import InBatchSampler
from rails_ray.data.queries import ItemLists, Queries, Visits
from rails_ray.families.dual_encoder.model import DualEncoder
from rails_ray.modules.encoders.bags import Bags, of_length_one
from rails_ray.modules.encoders.components import ComponentsConfig, ItemComponents, QueryComponents
from rails_ray.modules.encoders.sasrec import Sasrec, SasrecConfig
from rails_ray.modules.encoders.solar import Chunk, ChunksConfig
from rails_ray.modules.encoders.temperature import TemperatureConfig
from rails_ray.modules.encoders.two_tower import TwoTower, TwoTowerConfig
from rails_ray.modules.losses.beta_nce import beta_logit
from rails_ray.modules.similarities.mol import MixtureOfLogits, MixtureOfLogitsConfig
from rails_ray.training.buckets import BucketStep
from rails_ray.training.collectives.group import num_workers
from rails_ray.training.contrast import Contrast, Gathered, Streamed, WithinBatch
from rails_ray.training.objectives import Contrastive
from rails_ray.training.step import TrainingStep, in_one_process
from rails_ray.training.terms import MutualInformation

NUM_BATCHES = 4  # drawn beforehand, taken in turn
STEPS_AT_ONCE = 5  # timed together
LEAST_BATCH = 8


class Sizes(NamedTuple):
    """
    batch: queries of a step; windows of histories; pairs.
    negatives: N, drawn for the whole batch, where they are.
    components: P_Q, P_X.
    block_size: items that are scored at once, of `streamed`.
    hidden, num_buckets, num_sampled: of a chunk of SOLAR.
    """

    batch: int
    negatives: int = 512
    components: tuple[int, int] = (8, 8)
    block_size: int = 512
    hidden: int = 512
    num_buckets: int = 5000
    num_sampled: int = 0


# 8 x 8 components of width 32, as the paper has for Books, and its 512 negatives (RAILS, Appendix A.4.1). A chunk of
# SOLAR: buckets as in the recipe, and as in the paper (Table 4). Batches, T and hidden widths are chosen, for a GPU.
CASES = {
    "text, uniform": Sizes(512),
    "text, uniform, wide": Sizes(2048, negatives=2048),
    "histories of 200": Sizes(128, components=(8, 4)),
    "histories of 200, own negatives": Sizes(32, negatives=128, components=(8, 4)),
    "text, gathered": Sizes(2048),
    "text, streamed": Sizes(2048),
    "solar text, sampled": Sizes(512, num_sampled=500),
    "solar text, all buckets": Sizes(512, hidden=1024, num_buckets=20_000),
    "solar features": Sizes(512, hidden=1024, num_buckets=20_000),
}


class Corpus(NamedTuple):
    """Sizes of the synthetic data."""

    num_queries: int
    num_items: int
    tokens: int = 20  # of a text or of a query's features
    num_features: int = 135_909  # of Amazon-670K, a data set of SOLAR's paper
    text_buckets: int = 2**18  # rows of the towers' table
    history: int = 200  # T


FULL, SMALL = Corpus(50_000, 50_000), Corpus(300, 500, num_features=1000, text_buckets=2**10, history=20)


class Training(NamedTuple):
    step: nn.Module
    batch_of: Callable[[int], Any]


def cases(bench: Bench) -> Iterator[Case]:
    for name, sizes in CASES.items():
        if bench.is_small:
            sizes = made_small(sizes)
        for precision, way in itertools.product(bench.precisions, ways_of(name, bench.device)):
            labels = {"step": name, "precision": precision, "way": way}
            yield Case(labels, partial(measured, bench, name, sizes, precision, way))


def ways_of(name: str, device: torch.device) -> list[str]:
    """How a step is computed."""
    if name.startswith("solar") or name.endswith("own negatives"):
        return ["plain"]
    is_compiled = name.startswith("histories") and device.type == "cuda"
    return ["plain", "fused", *(["fused, compiled"] if is_compiled else [])]


def made_small(sizes: Sizes) -> Sizes:
    """For a test."""
    num_sampled = 10 if sizes.num_sampled else 0
    return Sizes(16, 24, components=(2, 2), block_size=10, hidden=16, num_buckets=50, num_sampled=num_sampled)


def measured(bench: Bench, name: str, sizes: Sizes, precision: str, way: str = "plain") -> dict[str, Any]:
    """A step's row, of the largest batch that fits."""
    too_large = []
    while True:
        try:
            row = measured_step(bench, name, sizes, precision, way)
        except torch.OutOfMemoryError:
            too_large.append(sizes.batch)
            if sizes.batch < 2 * LEAST_BATCH:
                raise
        else:
            return row | ({"out_of_memory_at": too_large} if too_large else {})
        sizes = sizes._replace(batch=sizes.batch // 2)  # out of the handler, which holds on to the tensors
        gc.collect()
        torch.cuda.empty_cache()


def measured_step(bench: Bench, name: str, sizes: Sizes, precision: str, way: str) -> dict[str, Any]:
    torch.manual_seed(0)
    training = built(name, sizes, SMALL if bench.is_small else FULL, DTYPES[precision], way)
    started = time.perf_counter()
    batches = [training.batch_of(number) for number in range(NUM_BATCHES)]
    draw_ms = 1000 * (time.perf_counter() - started) / NUM_BATCHES
    step = training.step.to(bench.device).train()
    trained = [parameter for parameter in step.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3, fused=True)
    in_turn, losses = itertools.cycle(batches), list[float]()

    def once() -> None:  # as `training.loop` takes a step
        optimizer.zero_grad(set_to_none=True)
        loss: Tensor = step(next(in_turn).to(bench.device))
        losses.append(loss.item())
        loss.backward()
        optimizer.step()

    at_once = 1 if bench.is_small else STEPS_AT_ONCE

    def some() -> None:
        for _ in range(at_once):
            once()

    with products_in(precision):
        peak = peak_mb(once, bench.device)
        with FlopCounterMode(display=False) as counter:
            once()
        latency, repeats = median_ms(some, bench.device, bench.is_small)
        host = work_of_the_host(once, bench.device)
    if not math.isfinite(losses[-1]):
        raise FloatingPointError(f"the loss must stay finite, got {losses[-1]} after {len(losses)} steps")
    seconds, flops = latency / 1000 / at_once, counter.get_total_flops()
    return {
        "batch": sizes.batch,
        "num_workers": num_workers(),
        "steps_per_s": 1 / seconds,
        "repeats": repeats * at_once,
        "draw_ms": draw_ms,
        "gflop": flops / 1e9,
        "share_of_products": flops / seconds / bench.limits.flops_per_s[precision],
        "last_loss": losses[-1],
        **peak,
        **host,
    }


def built(name: str, sizes: Sizes, corpus: Corpus, precision: torch.dtype, way: str = "plain") -> Training:
    """What a step is made of; all of this bench's calls into models, samplers and steps are here and below."""
    draw = np.random.default_rng(0)
    if name.startswith("solar"):
        return solar_training(name, sizes, corpus, precision, draw)
    if name.startswith("histories"):
        histories = Visits.of(list(draw.integers(corpus.num_items, size=(sizes.batch * 4, corpus.history + 1))))
        following = draw.integers(corpus.num_items, size=len(histories))
        config = SasrecConfig(max_length=corpus.history, num_items=corpus.num_items)
        step = mixture_step(Sasrec(config), sizes, WithinBatch(), precision, way=way)
        windows = WindowSampler(
            histories,
            following,
            num_corpus_items=corpus.num_items,
            max_length=corpus.history,
            batch_size=sizes.batch,
            num_items=sizes.negatives,
            seed=0,
            shared_by="history" if name.endswith("own negatives") else "batch",
        )
        return Training(step, windows.batch)
    relevant = ItemLists.of(list(draw.integers(corpus.num_items, size=(corpus.num_queries, 1))))
    queries = Queries([""] * corpus.num_queries, relevant)  # no sampler reads the texts
    features = [bags(num, corpus, draw) for num in (corpus.num_queries, corpus.num_items)]
    encoder = TwoTower(TwoTowerConfig(num_buckets=corpus.text_buckets))
    contrast: dict[str, Contrast] = {"gathered": Gathered(), "streamed": Streamed(sizes.block_size)}
    kind = name.split(", ")[1]
    step = mixture_step(encoder, sizes, contrast.get(kind, WithinBatch()), precision, way=way)
    if kind in contrast:
        return Training(step, InBatchSampler(queries, *features, batch_size=sizes.batch, seed=0).batch)
    uniform = PairSampler(queries, *features, batch_size=sizes.batch, num_items=sizes.negatives, seed=0)
    return Training(step, uniform.batch)


def mixture_step(
    encoder: Any,
    sizes: Sizes,
    contrast: Contrast,
    precision: torch.dtype,
    *,
    encode_size: int = 0,
    dropout: float = 0.1,
    way: str = "plain",
) -> TrainingStep:
    """A Mixture of Logits on top of an encoder, trained by BetaNCE."""
    p_q, p_x = sizes.components
    compared_by = MixtureOfLogitsConfig(
        num_query_components=p_q,
        num_item_components=p_x,
        logit_dropout=dropout,
        gate_dropout=2 * dropout,
        gate_precision="auto" if "fused" in way else "float32",
    )
    components = ComponentsConfig(width=32)
    model = DualEncoder(
        encoder,
        QueryComponents(encoder.query_width, sizes.components, components, TemperatureConfig()),
        ItemComponents(encoder.item_width, sizes.components, components),
        MixtureOfLogits(compared_by),
    )
    if "compiled" in way:
        model.compile_blocks()
    return TrainingStep(
        model,
        Contrastive(beta_logit, 0.3),
        contrast,
        terms=[MutualInformation(0.001, in_one_process)],
        encode_size=encode_size,
        precision=precision,
    )


def solar_training(
    name: str, sizes: Sizes, corpus: Corpus, precision: torch.dtype, draw: np.random.Generator
) -> Training:
    config = ChunksConfig(
        num_buckets=sizes.num_buckets,
        hidden=sizes.hidden,
        input="features" if "features" in name else "text",
        num_inputs=2**14,
        width=corpus.num_features,
    )
    drawn = bags(corpus.num_queries, corpus._replace(text_buckets=corpus.num_features), draw)
    weights = torch.from_numpy(draw.random(len(drawn.tokens), dtype=np.float32)) + 0.1
    features = of_length_one(Bags(drawn.tokens, drawn.starts, weights))
    relevant = ItemLists.of(list(draw.integers(corpus.num_items, size=(corpus.num_queries, 2))))
    buckets = draw.integers(sizes.num_buckets, size=corpus.num_items)
    sampler = BucketSampler(relevant, features, buckets, batch_size=sizes.batch, seed=0)
    return Training(
        BucketStep(Chunk(config, 0, 2.0), num_sampled=sizes.num_sampled, precision=precision), sampler.batch
    )


def bags(num_texts: int, corpus: Corpus, draw: np.random.Generator) -> Bags:
    """Texts of so many tokens each."""
    tokens = draw.integers(corpus.text_buckets, size=num_texts * corpus.tokens)
    return Bags(torch.from_numpy(tokens), torch.arange(num_texts) * corpus.tokens)
