"""Codebooks that gradients change, against loops; the theory of MoPQ; codewords that no item has."""

import math
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles.vectors
from rails_ray.families.vector_items.storing import Method as AnyMethod
from rails_ray.modules.losses.negatives import BatchRelevance, roles
from rails_ray.modules.losses.quantization import mean_product
from rails_ray.modules.quantizers.distill_vq import DistillVqConfig
from rails_ray.modules.quantizers.dpq import DpqConfig
from rails_ray.modules.quantizers.dqn import DqnConfig
from rails_ray.modules.quantizers.dvsq import DvsqConfig
from rails_ray.modules.quantizers.jpq import JpqConfig
from rails_ray.modules.quantizers.learned import LearnedQuantizer, Matched, Method, Quantized, balance
from rails_ray.modules.quantizers.measured import num_dead
from rails_ray.modules.quantizers.mopq import MopqConfig
from rails_ray.modules.quantizers.product import ProductQuantizer, Selection
from rails_ray.modules.quantizers.spq import SpqConfig
from support.quantizers import SELECTIONS, a_quantizer, some_vectors

METHODS: dict[str, Method] = {
    "dqn": DqnConfig(),
    "dvsq": DvsqConfig(),
    "spq": SpqConfig(),
    "dpq": DpqConfig(),
    "mopq": MopqConfig(codeword_weight=0.5),
    "mopq, dense": MopqConfig(codeword_weight=0.5, dense_weight=2.0),
    "distill_vq": DistillVqConfig(),
    "jpq": JpqConfig(),
}
methods = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
selections = pytest.mark.parametrize("selection", SELECTIONS)


def matched(method: Method, num_components: int = 1, seed: int = 0) -> tuple[LearnedQuantizer, Matched]:
    """Three queries and five items, each query with its own positive."""
    learned = method.begin(a_quantizer(num_codewords=4, turns=6 // num_components, seed=seed))
    items = some_vectors(5, 6, seed).requires_grad_()
    query = some_vectors(3, 6, seed + 1).view(3, num_components, -1)
    assigned = learned(items)
    quantized = Quantized(items, assigned, learned.soft(assigned), num_components)
    nothing = torch.zeros(0, dtype=torch.int64)
    own = roles(torch.arange(5), torch.tensor([4, 0, 2]), BatchRelevance(nothing, nothing))
    return learned, Matched(query, quantized, own, 0.1)


# Codewords


@selections
@pytest.mark.parametrize("tau", [1.0, 0.1])
def test_codewords_are_those_of_the_frozen_quantizer(selection: Selection, tau: float) -> None:
    learned = LearnedQuantizer(a_quantizer(turns=6), selection, tau=tau)
    vectors = some_vectors(40, 6)
    assigned, frozen = learned(vectors), learned.frozen()
    assert torch.equal(assigned.codes.to(torch.uint8), frozen.encode(vectors))
    assert torch.allclose(assigned.read_back, frozen.decode(frozen.encode(vectors)), atol=1e-6)
    assert torch.equal(assigned.read_back, assigned.hard)
    scores = learned.chosen_by[0][0] @ frozen.rotated(vectors)[:, :2].T + learned.chosen_by[1][0][:, None]
    expected = [oracles.vectors.softmax((own / tau).tolist()) for own in scores.T]
    assert torch.allclose(assigned.log_probabilities[:, 0].exp(), torch.tensor(expected), atol=1e-5)


def test_the_mean_codeword() -> None:
    learned = LearnedQuantizer(a_quantizer())
    vectors = some_vectors(4, 6)
    assigned = learned(vectors)
    for item, line in enumerate(assigned.log_probabilities.exp().tolist()):
        parts = [
            sum(p * c for p, c in zip(line[m], learned.codebooks[m, :, number].tolist(), strict=True))
            for m in range(3)
            for number in range(2)
        ]
        assert learned.soft(assigned)[item].tolist() == pytest.approx(parts, abs=1e-5)


def test_straight_through() -> None:
    """The value of one codeword; the gradient of its choice, and of all probabilities."""
    learned = LearnedQuantizer(a_quantizer(), tau=0.5)
    vectors, towards = some_vectors(4, 6).requires_grad_(), some_vectors(4, 6, 1)
    assigned = learned(vectors)
    of_items, of_codebooks = torch.autograd.grad((assigned.read_back * towards).sum(), [vectors, learned.codebooks])
    soft = torch.einsum("xml,mlw->xmw", learned(vectors).log_probabilities.exp(), learned.codebooks.detach())
    of_soft, by_selection = torch.autograd.grad((soft.flatten(1) * towards).sum(), [vectors, learned.codebooks])
    assert torch.allclose(of_items, of_soft, atol=1e-6)
    chosen = torch.zeros_like(learned.codebooks)
    for item, code in enumerate(assigned.codes.tolist()):
        for subspace, codeword in enumerate(code):
            chosen[subspace, codeword] += towards[item, 2 * subspace : 2 * subspace + 2]
    assert torch.allclose(of_codebooks, chosen + by_selection, atol=1e-5)
    [hard] = torch.autograd.grad((learned(vectors).hard * towards).sum(), [learned.codebooks])
    assert torch.allclose(hard, chosen, atol=1e-5)


@given(st.integers(1, 30), st.integers(2, 5), st.integers(0, 99))
def test_balanced_items_are_shared_out_evenly(num: int, num_codewords: int, seed: int) -> None:
    scores = torch.randn(2, num, num_codewords, generator=torch.Generator().manual_seed(seed))
    plan = balance(scores).exp()
    assert torch.allclose(plan.sum(dim=2), torch.ones(2, num), atol=1e-4)
    assert torch.allclose(plan.sum(dim=1), torch.full((2, num_codewords), num / num_codewords), rtol=0.1)


def test_balancing_is_for_training_alone() -> None:
    start = ProductQuantizer.of(torch.tensor([[[0.0], [100.0], [200.0]]]))
    learned = LearnedQuantizer(start, tau=1e4, is_balanced=True)
    vectors = torch.arange(9.0)[:, None]
    assert learned(vectors).codes.unique().tolist() == [0, 1, 2]
    assert learned.eval()(vectors).codes.unique().tolist() == [0]


# Methods


@methods
@pytest.mark.parametrize("num_components", [1, 2])
def test_a_method_adds_a_finite_loss_and_moves_its_codebooks(method: Method, num_components: int) -> None:
    learned, batch = matched(method, num_components)
    beside, compared = method.loss(batch), method.compared(batch.items)
    assert beside.shape == (3,)
    assert compared.shape == (5, 6)
    logits = mean_product(batch.query, compared.unflatten(1, (num_components, -1))) / batch.tau
    total = torch.nn.functional.cross_entropy(logits, batch.roles.positive) + beside.sum()
    total.backward()
    assert total.isfinite()
    assert learned.codebooks.grad is not None
    assert learned.codebooks.grad.norm() > 0
    assert isinstance(method, Method)


def test_losses_equal_the_equations() -> None:
    """Of each method, for one positive."""
    for method in METHODS.values():
        _, batch = matched(method)
        items, row = batch.items, 4  # of the first query
        x, hard = items.vectors[row].tolist(), items.assigned.hard[row].tolist()
        log_p, query = items.assigned.log_probabilities, batch.query[0, 0].tolist()
        apart = sum((a - b) ** 2 for a, b in zip(x, hard, strict=True))
        match method:
            case DqnConfig() | DpqConfig():
                expected = method.reconstruction_weight * apart
            case DvsqConfig():
                moved = [oracles.vectors.dot(query, own) ** 2 for own in (items.vectors - items.assigned.hard).tolist()]
                expected = method.distortion_weight * sum(moved) / 5
            case SpqConfig():
                soft = items.soft[row].tolist()
                p = log_p.exp()
                gini = [sum(v**2 for v in p[:, m].mean(dim=0).tolist()) for m in range(3)]
                sure = [sum(v**2 for v in own) for item in p.tolist() for own in item]
                expected = method.disagreement_weight * sum((a - b) ** 2 for a, b in zip(soft, hard, strict=True))
                expected += method.evenness_weight * (sum(gini) - sum(sure) / 5)
            case MopqConfig():
                code = items.assigned.codes[row].tolist()
                expected = -method.codeword_weight * sum(log_p[row, m, entry].item() for m, entry in enumerate(code))
                given = oracles.vectors.softmax(
                    [oracles.vectors.dot(query, own) / 0.1 for own in items.vectors.tolist()]
                )
                expected -= method.dense_weight * math.log(given[row])
            case DistillVqConfig():
                teacher = oracles.vectors.softmax(
                    [oracles.vectors.dot(query, own) / 0.1 for own in items.vectors.tolist()]
                )
                student = oracles.vectors.softmax(
                    [oracles.vectors.dot(query, own) / 0.1 for own in items.assigned.hard.tolist()]
                )
                expected = -sum(t * math.log(s) for t, s in zip(teacher, student, strict=True))
            case JpqConfig():
                expected = 0.0
        assert method.loss(batch)[0].item() == pytest.approx(expected, rel=1e-4), method.kind


def test_codes_of_jpq_stay() -> None:
    learned, batch = matched(JpqConfig())
    before = batch.items.assigned.codes
    with torch.no_grad():
        learned.codebooks += torch.randn_like(learned.codebooks)
    assert torch.equal(learned(batch.items.vectors).codes, before)
    assert [name for name, own in learned.named_parameters() if own.requires_grad] == ["codebooks"]


@pytest.mark.parametrize("kind", [DpqConfig, SpqConfig, MopqConfig, DistillVqConfig])
def test_numbers_that_cannot_be(kind: type) -> None:
    with pytest.raises(ValueError, match=r"tau must be above 0, got 0"):
        kind(tau=0.0)
    [*names] = [name for name in kind.__dataclass_fields__ if name.endswith("weight")]
    for name in names:
        with pytest.raises(ValueError, match=rf"{name} must be at least 0, got -1"):
            kind(**{name: -1.0})


# Theory


def test_theorem_2_2() -> None:
    """Codewords of each codebook are all moved by one small vector: codes stay, the loss of reconstruction rises, and
    the order of items does not change."""
    vectors, queries = some_vectors(200, 6), some_vectors(9, 6, 1)
    quantizer = a_quantizer(num_codewords=8)
    codes = quantizer.encode(vectors)
    parts = vectors.view(200, 3, 1, 2)
    distances = (parts - quantizer.codebooks).norm(dim=3).sort(dim=2).values
    radius = 0.5 * (distances[:, :, 1] - distances[:, :, 0]).min(dim=0).values  # Lemma 2.1
    epsilon = torch.nn.functional.normalize(some_vectors(3, 2, 2)) * 0.99 * radius[:, None]
    residual = (vectors - quantizer.decode(codes)).view(200, 3, 2).mean(dim=0)
    epsilon = epsilon * -torch.sign((epsilon * residual).sum(dim=1, keepdim=True))  # away from what is left
    moved = ProductQuantizer.of(quantizer.codebooks + epsilon[:, None])
    assert torch.equal(moved.encode(vectors), codes)
    before, after = (vectors - quantizer.decode(codes)).square().sum(), (vectors - moved.decode(codes)).square().sum()
    assert after > before
    scores, others = queries @ quantizer.decode(codes).T, queries @ moved.decode(codes).T
    assert torch.allclose(others - scores, (queries @ epsilon.flatten())[:, None].expand_as(scores), atol=1e-5)


def test_reconstruction_and_recall_are_not_monotone() -> None:
    """Two quantizers, of which the one that loses more finds more: what it loses no query asks for."""
    generator = torch.Generator().manual_seed(0)
    asked, unasked = torch.randn(500, 2, generator=generator), 5 * torch.randn(500, 2, generator=generator)
    vectors = torch.cat([asked, unasked], dim=1)
    queries = torch.cat([torch.randn(50, 2, generator=generator), torch.zeros(50, 2)], dim=1)
    best = (queries @ vectors.T).topk(10).indices

    def measured(numbers: tuple[int, int]) -> tuple[float, float]:
        """Mean loss, and recall of the ten best, with so many codewords that differ in each half."""
        halves = zip(vectors.chunk(2, dim=1), numbers, strict=True)
        quantizer = ProductQuantizer.of(torch.stack([half[:num].repeat(256 // num, 1) for half, num in halves]))
        back = quantizer.decode(quantizer.encode(vectors))
        found = (queries @ back.T).topk(10).indices
        recall = sum(len(set(a) & set(b)) for a, b in zip(found.tolist(), best.tolist(), strict=True)) / 500
        return float((vectors - back).square().sum(dim=1).mean()), recall

    loses_more, loses_less = measured((256, 2)), measured((2, 256))
    assert loses_more[0] > 5 * loses_less[0]
    assert loses_more[1] > 5 * loses_less[1]


# Dead codewords


def test_codewords_without_items_come_alive() -> None:
    start = a_quantizer(num_codewords=6)
    start.codebooks[:, 4:] = 1000.0
    learned = LearnedQuantizer(ProductQuantizer.of(start.codebooks))
    vectors = some_vectors(400, 6)
    assigned = learned(vectors)
    assert num_dead(assigned.codes.to(torch.uint8), 6) == 6
    learned.count(assigned.codes[:200])
    learned.count(assigned.codes[200:])
    assert learned.num_chosen.sum(dim=1).tolist() == [400] * 3
    before = learned.codebooks.detach().clone()
    assert learned.revive(vectors) == 6
    assert torch.equal(learned.codebooks[:, :4], before[:, :4])
    parts = vectors.view(400, 3, 2)
    for subspace in range(3):
        for codeword in learned.codebooks[subspace, 4:]:
            assert (parts[:, subspace] == codeword).all(dim=1).any()
    assert num_dead(learned(vectors).codes.to(torch.uint8), 6) == 0
    assert learned.revive(vectors[:0]) == 0
    assert not learned.num_chosen.any()


@pytest.mark.parametrize("num_items", [6, 4])
def test_codewords_come_alive_on_different_items(num_items: int) -> None:
    """On the same item, all but one of them would stay without items."""
    learned = LearnedQuantizer(a_quantizer(num_codewords=6))
    vectors = some_vectors(num_items, 6)
    assert learned.revive(vectors) == 18
    assert num_dead(learned(vectors).codes.to(torch.uint8), 6) == 3 * (6 - num_items)


def test_own_selectors_come_alive_with_their_codewords() -> None:
    start = a_quantizer(num_codewords=6)
    learned = LearnedQuantizer(start, has_own_selectors=True)
    with torch.no_grad():
        learned.biases[:, 5] = -1e9
    vectors = some_vectors(400, 6)
    learned.count(learned(vectors).codes)
    assert learned.revive(vectors) == 3
    assert num_dead(learned(vectors).codes.to(torch.uint8), 6) == 0


def test_codewords_of_fixed_codes_stay_where_they_are() -> None:
    """Elsewhere, a codeword would still be chosen by the items of its old place."""
    learned = JpqConfig().begin(a_quantizer(num_codewords=6))
    vectors, before = some_vectors(400, 6), learned.codebooks.detach().clone()
    codes = learned(vectors).codes
    learned.count(codes[(codes > 0).all(dim=1)])
    assert learned.revive(vectors) == 0
    assert torch.equal(learned.codebooks, before)


def test_every_selection_and_method_is_in_the_suite() -> None:
    assert set(get_args(Selection)) == set(SELECTIONS)
    assert {method.kind for method in METHODS.values()} == {member.kind for member in get_args(AnyMethod)}
