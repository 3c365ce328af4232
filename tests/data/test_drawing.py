import numpy as np
import pytest
import torch

from rails_ray.data.drawing import Drawing, EveryItem, Mixture, Popularity, Uniform
from support.examples import window_sampler

COUNTS = np.array([0, 1, 2, 5, 12])
SHARES = np.array([1, 1, 2, 5, 12]) / 21
EXPECTED = {
    "uniform": (Uniform(5), np.full(5, 0.2)),
    "popularity": (Popularity(COUNTS, 1.0, is_corrected=True), SHARES),
    "root of popularity": (Popularity(COUNTS, 0.5, is_corrected=True), SHARES**0.5 / (SHARES**0.5).sum()),
    "mixture": (Mixture(Popularity(COUNTS, 1.0, is_corrected=True)), (SHARES + 0.2) / 2),
}


@pytest.mark.parametrize(("drawing", "probabilities"), EXPECTED.values(), ids=EXPECTED)
def test_items_are_drawn_by_their_probabilities(drawing: Drawing, probabilities: np.ndarray) -> None:
    rows = drawing.draw(np.random.default_rng(0), [400, 100])
    assert rows.shape == (400, 100)
    found = np.bincount(rows.flatten(), minlength=5) / rows.size
    assert found == pytest.approx(probabilities, abs=0.01)
    weights = drawing.log_weights(np.arange(5))
    assert (np.zeros(5) if weights is None else weights) == pytest.approx(-np.log(5 * probabilities), abs=1e-6)
    assert isinstance(drawing, Drawing)


@pytest.mark.parametrize("size", [[5], [9], [2, 7], [0], [3, 0], [0, 8]])
def test_every_item_is_in_each_line_once(size: list[int]) -> None:
    drawing, generator = EveryItem(5), np.random.default_rng(0)
    rows = drawing.draw(generator, size)
    line = list(range(5)) if size[-1] else []
    assert rows.tolist() == (line if len(size) == 1 else [line] * size[0])
    assert rows.dtype == np.int64
    assert drawing.log_weights(rows) is None
    assert isinstance(drawing, Drawing)
    rows[...] = 1  # a caller may change what it got
    assert drawing.draw(generator, [5]).tolist() == list(range(5))


def test_weighted_sums_estimate_the_sum_over_the_corpus() -> None:
    """Whatever the items are drawn by: the mean of weight times value is the mean value of the corpus."""
    values = np.array([3.0, -1.0, 4.0, 1.0, -5.0])
    for drawing, _ in EXPECTED.values():
        rows = drawing.draw(np.random.default_rng(1), [300_000])
        weights = drawing.log_weights(rows)
        found = values[rows] if weights is None else values[rows] * np.exp(weights)
        assert found.mean() == pytest.approx(values.mean(), abs=0.03)


@pytest.mark.parametrize(
    "drawing", [Popularity(COUNTS, 1.0, is_corrected=False), Mixture(Popularity(COUNTS, 1.0, is_corrected=False))]
)
def test_nothing_is_corrected_unasked(drawing: Drawing) -> None:
    assert drawing.log_weights(np.arange(5)) is None


@pytest.mark.parametrize("shared_by", ["batch", "history", "query"])
def test_weights_of_a_batch_of_histories(shared_by: str) -> None:
    """Each negative its own, the positive none."""
    drawing = Popularity(np.arange(9), 1.0, is_corrected=True)
    batch = window_sampler(shared_by=shared_by, drawing=drawing).batch(1)
    roles = batch.roles()
    if batch.groups is None:
        rows = batch.items[: batch.num_shared].expand(len(batch.positive), -1)
    else:
        rows = batch.items[batch.groups.negatives[batch.groups.of_query]]
    expected = torch.from_numpy(drawing.log_weights(rows.numpy()))
    assert torch.equal(roles.log_weights[:, :-1], expected)
    assert not roles.log_weights[:, -1].any()
    logits = torch.randn(roles.log_weights.shape)
    changed = roles.weighted(logits) - logits
    assert torch.allclose(changed[:, :-1], expected * roles.is_negative[:, :-1], atol=1e-6)
    assert not changed[:, -1].any()
    half = roles.of_queries(slice(2, 5))
    assert torch.equal(half.weighted(logits[2:5]), roles.weighted(logits)[2:5])
