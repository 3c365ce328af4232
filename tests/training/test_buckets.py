from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pytest
import torch

import oracles.losses
import oracles.ranking
from rails_ray.data.buckets import BucketBatch, BucketSampler, positives_of
from rails_ray.data.queries import ItemLists, SparseRows
from rails_ray.families.solar.model import Solar
from rails_ray.modules import weight_files
from rails_ray.modules.encoders.solar import Chunk, ChunksConfig, InputVectors
from rails_ray.modules.losses.bucket_cross_entropy import bucket_cross_entropy
from rails_ray.modules.quantizers import random_codes
from rails_ray.modules.schedule import TrainingConfig
from rails_ray.modules.similarities.look_up import LookUpConfig
from rails_ray.modules.similarities.states import Codes
from rails_ray.training import buckets, checkpoints
from rails_ray.training.buckets import BucketStep, bucket_recall, measured_probes
from rails_ray.training.loop import Progress, train

VECTORS = ChunksConfig(num_chunks=1, num_buckets=6, hidden=5, input="vector", width=3)
RELEVANT = ItemLists.of([[0, 2], [1], [3, 0, 1], [2, 1]])
BUCKETS = np.array([2, 0, 2, 5], dtype=np.int32)


def chunk_of(config: ChunksConfig = VECTORS, seed: int = 3) -> Chunk:
    torch.manual_seed(seed)
    return Chunk(config, seed)


def batch_of(num_queries: int = 4) -> BucketBatch:
    torch.manual_seed(9)
    chosen = RELEVANT.take(slice(num_queries))
    return BucketBatch(InputVectors(torch.randn(num_queries, 3)), positives_of(chosen, BUCKETS))


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Of models this small a second thread makes a hundredth of the speed, where another process has its core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("num_sampled", [0, 6, 7, 100])
def test_all_buckets_give_the_mean_of_the_equation(num_sampled: int) -> None:
    chunk, batch = chunk_of(), batch_of()
    loss = BucketStep(chunk, num_sampled=num_sampled)(batch)
    targets = oracles.losses.bucket_targets(list(map(list, RELEVANT)), BUCKETS.tolist(), 6)
    pairs = zip(chunk(batch.queries).tolist(), targets, strict=True)
    assert loss.item() == pytest.approx(sum(oracles.losses.binary_cross_entropy(*pair) for pair in pairs) / 4, rel=1e-5)
    assert loss.shape == ()


def draw(monkeypatch: pytest.MonkeyPatch, drawn: tuple[int, ...]) -> None:
    """Let the next sample be of these buckets."""
    others = [bucket for bucket in range(6) if bucket not in drawn]
    monkeypatch.setattr(torch, "randperm", lambda size: torch.tensor([*drawn, *others]))


@pytest.mark.parametrize("num_sampled", [4, 5])
def test_the_mean_over_all_samples_is_the_loss_of_all_buckets(
    num_sampled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a sample and the positive buckets are all that there are."""
    chunk, batch = chunk_of().double(), batch_of()
    batch = BucketBatch(InputVectors(batch.queries.values.double()), batch.positives)
    expected = bucket_cross_entropy(chunk(batch.queries), batch.positives).mean()
    step = BucketStep(chunk, num_sampled=num_sampled)
    losses = []
    for drawn in combinations(range(6), num_sampled):
        draw(monkeypatch, drawn)
        losses.append(step(batch))
    assert len({round(loss.item(), 6) for loss in losses}) > 1
    mean = torch.stack(losses).mean()
    assert mean.item() == pytest.approx(expected.item(), rel=1e-6)
    for name, parameter in chunk.named_parameters():
        ours, theirs = (torch.autograd.grad(of, parameter, retain_graph=True)[0] for of in (mean, expected))
        assert torch.allclose(ours, theirs, atol=1e-5), name


def test_a_sample_is_its_seeds() -> None:
    step, batch = BucketStep(chunk_of(), num_sampled=2), batch_of()

    def loss_of(seed: int) -> float:
        torch.manual_seed(seed)
        return step(batch).item()

    assert loss_of(0) == loss_of(0)
    assert len({loss_of(seed) for seed in range(9)}) > 3


def test_a_sample_reaches_its_buckets_and_the_positive_ones_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bucket 5 answers no query here; 0 and 2 do, 1 is drawn."""
    draw(monkeypatch, (1,))
    chunk = chunk_of()
    BucketStep(chunk, num_sampled=1)(batch_of(2)).backward()
    assert (chunk.output.weight.grad != 0).any(dim=1).tolist() == [True, True, True, False, False, False]
    assert (chunk.output.bias.grad != 0).tolist() == [True, True, True, False, False, False]


@pytest.mark.parametrize("num_sampled", [0, 2])
def test_a_batch_reaches_the_rows_of_its_features_alone(num_sampled: int) -> None:
    chunk = chunk_of(ChunksConfig(num_chunks=1, num_buckets=6, hidden=5, input="features", width=4))
    inputs = SparseRows(np.array([0, 2, 3]), np.array([0, 3, 3]), np.array([1, 2, 5], dtype=np.float32), 4)
    chunk.learn(inputs)
    batch = BucketBatch(chunk.features(inputs), positives_of(RELEVANT.take(slice(2)), BUCKETS))
    BucketStep(chunk, num_sampled=num_sampled)(batch).backward()
    assert (chunk.input.weight.grad != 0).any(dim=1).tolist() == [True, False, False, True]
    assert all(parameter.grad is not None for parameter in chunk.parameters())


@pytest.mark.parametrize("num_sampled", [0, 2])
def test_bfloat16_is_close_and_its_loss_float32(num_sampled: int) -> None:
    losses = []
    for precision in (torch.float32, torch.bfloat16):
        torch.manual_seed(0)
        losses.append(BucketStep(chunk_of(), num_sampled=num_sampled, precision=precision)(batch_of()))
    assert losses[1].dtype == torch.float32
    assert 0 < abs(losses[0].item() - losses[1].item()) < 0.02


@pytest.mark.parametrize("num_probes", range(1, 7))
@pytest.mark.parametrize("batch_size", [3, 4, 512])
def test_bucket_recall_equals_the_loops(num_probes: int, batch_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "BATCH_SIZE", batch_size)
    chunk = chunk_of()
    generator = np.random.default_rng(0)
    relevant = [generator.choice(4, size=size, replace=False).tolist() for size in (1, 4, 2, 3, 1, 2, 4, 1)]
    features = InputVectors(torch.randn(8, 3))
    found = bucket_recall(chunk, features, positives_of(ItemLists.of(relevant), BUCKETS), num_probes)
    expected = oracles.ranking.bucket_recall(
        chunk(features).tolist(), oracles.losses.bucket_targets(relevant, BUCKETS.tolist(), 6), num_probes
    )
    assert found == pytest.approx(expected)
    assert (found == 1) == (expected == 1)
    assert num_probes < 6 or found == 1


@pytest.mark.parametrize(
    ("num_buckets", "probes"), [(1, 1), (50, 1), (51, 2), (1000, 20), (5000, 100), (5001, 100), (20_000, 100)]
)
def test_probes_of_a_recall_are_few_of_all_buckets(num_buckets: int, probes: int) -> None:
    assert measured_probes(num_buckets) == probes


NUM_ITEMS, NUM_QUERIES = 32, 40
TRAINING = TrainingConfig(num_steps=120, batch_size=16, learning_rate=3e-2, validate_every=20)


def answers() -> ItemLists:
    """One or two items for each query."""
    generator = np.random.default_rng(5)
    return ItemLists.of(
        [generator.choice(NUM_ITEMS, size=1 + query % 2, replace=False) for query in range(NUM_QUERIES)]
    )


def inputs_of(kind: str) -> list[str] | SparseRows | np.ndarray:
    """Of each query: two words of its own order out of many, two features, or a random vector."""
    pairs = [(query % 8, 8 + query // 8) for query in range(NUM_QUERIES)]
    if kind == "text":
        return [f"w{first} w{second}" for first, second in pairs]
    if kind == "features":
        starts, values = 2 * np.arange(NUM_QUERIES + 1), np.ones(2 * NUM_QUERIES, dtype=np.float32)
        return SparseRows(starts, np.array(pairs).reshape(-1), values, 13)
    return np.random.default_rng(0).standard_normal((NUM_QUERIES, 8)).astype(np.float32)


def config_of(kind: str) -> ChunksConfig:
    width = {"text": 0, "features": 13, "vector": 8}[kind]
    return ChunksConfig(num_chunks=4, num_buckets=16, hidden=64, num_inputs=64, input=kind, width=width)


class ChunkRun:
    """The training of a chunk, with a checkpoint after every 15 steps."""

    def __init__(self, kind: str, number: int, codes: np.ndarray, num_sampled: int = 0) -> None:
        self.chunk = chunk_of(config_of(kind), seed=number)
        self.chunk.learn(inputs_of(kind))
        features = self.chunk.features(inputs_of(kind))
        own = codes[:, number]
        self.step = BucketStep(self.chunk, num_sampled=num_sampled)
        self.sampler = BucketSampler(answers(), features, own, batch_size=16, seed=number)
        self.validate = lambda: bucket_recall(self.chunk, features, positives_of(answers(), own), 2)
        self.checkpoints: list[bytes] = []
        self.stops_after = TRAINING.num_steps

    def train(self, checkpoint: bytes | None = None) -> Progress:
        done = 0

        def report(number: int, loss: float) -> None:
            nonlocal done
            done = number
            if number > self.stops_after:
                raise KeyboardInterrupt

        return train(
            self.step,
            self.sampler.batch,
            TRAINING,
            seed=[self.chunk.seed],
            report=report,
            validate=self.validate,
            checkpoint=checkpoint,
            save=self.checkpoints.append,
            is_due=lambda: done % 15 == 0,
            clock=lambda: 0.0,
        )


@pytest.mark.parametrize(("kind", "num_sampled"), [("text", 0), ("text", 6), ("features", 6), ("vector", 0)])
def test_chunks_that_train_alone_find_the_right_items_together(kind: str, num_sampled: int) -> None:
    """In two of the chunks some of the words share a place: what these take for each other, the others tell apart."""
    codes = random_codes.balanced(NUM_ITEMS, 4, 16, seed=0)
    training = [ChunkRun(kind, number, codes, num_sampled) for number in range(4)]
    assert all(run.validate() < 0.5 for run in training)
    for run in training:
        run.train()
        assert run.validate() > 0.7
    assert (min(run.validate() for run in training) < 1) == (kind == "text")
    solar = Solar(config_of(kind), LookUpConfig(), {number: run.chunk for number, run in enumerate(training)})
    query = solar.encode_queries(solar.query_features(inputs_of(kind)))
    best = solar.similarity.scores(query, Codes(torch.from_numpy(codes))).argmax(dim=1)
    assert all(row in rows for row, rows in zip(best.tolist(), answers(), strict=True))


@pytest.mark.parametrize("num_sampled", [0, 6])
def test_a_chunk_that_was_cut_off_ends_as_if_nothing_had_happened(num_sampled: int) -> None:
    codes = random_codes.balanced(NUM_ITEMS, 4, 16, seed=0)
    undisturbed, first, second = (ChunkRun("text", 2, codes, num_sampled) for _ in range(3))
    expected = undisturbed.train()
    first.stops_after = 50
    with pytest.raises(KeyboardInterrupt):
        first.train()
    assert checkpoints.steps_done(first.checkpoints[-1]) == 45
    second.chunk.known = torch.empty(0, dtype=torch.int64)  # they are in the checkpoint
    assert second.train(first.checkpoints[-1]) == expected
    assert len(expected.validations) == 6
    ends = [weight_files.copy(run.chunk) for run in (second, undisturbed)]
    assert ends[0].keys() == ends[1].keys()
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_a_checkpoint_of_another_chunk_is_refused() -> None:
    codes = random_codes.balanced(NUM_ITEMS, 4, 16, seed=0)
    run = ChunkRun("vector", 1, codes)
    run.stops_after = 15
    with pytest.raises(KeyboardInterrupt):
        run.train()
    step = ChunkRun("vector", 2, codes).step
    optimizer = torch.optim.AdamW(step.parameters())
    with pytest.raises(ValueError, match="weights of a chunk must be of seed 2, got seed 1: train it again"):
        checkpoints.load_checkpoint(step, optimizer, run.checkpoints[-1])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("num_sampled", [0, 2])
def test_on_a_gpu_products_are_in_bfloat16(num_sampled: int) -> None:
    losses = []
    for precision in (None, torch.bfloat16, torch.float32):
        torch.manual_seed(0)
        step = BucketStep(chunk_of(), num_sampled=num_sampled, precision=precision).cuda()
        losses.append(step(batch_of().to("cuda")).item())
    assert losses[0] == losses[1] == pytest.approx(losses[2], rel=2e-2)
    assert losses[0] != losses[2]
