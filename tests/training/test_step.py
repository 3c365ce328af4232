from dataclasses import replace

import pytest
import torch

import oracles.losses
import oracles.vectors
from rails_ray.data.batch import PairSampler, TrainingBatch
from rails_ray.data.in_batch import InBatchSampler
from rails_ray.families.config import RunConfig
from rails_ray.families.dual_encoder.config import Loss
from rails_ray.families.dual_encoder.negatives import CrossDeviceNegatives
from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.modules.encoders.text import TransformerConfig
from rails_ray.modules.losses.config import ContrastiveConfig, MaximumLikelihoodConfig, PointwiseConfig, TermsConfig
from rails_ray.modules.similarities.states import take
from rails_ray.training.step import TrainingStep, in_one_process
from support.examples import (
    COLOURED,
    EVERY_LOSS,
    NO_TERMS,
    THINGS,
    batches_of,
    sampler_of,
    small_config,
    small_history_config,
    window_sampler,
)


@pytest.mark.parametrize("similarity", ["mixture", "dot product"])
@pytest.mark.parametrize("kind", ["beta_nce", "exp_nce", "sampled_softmax"])
def test_loss_is_the_sum_of_its_equations(similarity: str, kind: str) -> None:
    config = small_config(similarity)
    config = config.with_family(
        loss=ContrastiveConfig(kind=kind, pointwise_weight=0.5), terms=TermsConfig(mutual_information_weight=0.25)
    )
    model = DualEncoderTraining.of(config).model()
    step = DualEncoderTraining.of(config).training_step(model, in_one_process).eval()
    batch = sampler_of(model).batch(0)
    loss = step(batch).item()

    query, items = model.encode_queries(batch.queries), model.encode_items(batch.items)
    scores, gates = model.score(query, items)
    logit_of = {
        "beta_nce": oracles.losses.beta_logit,
        "exp_nce": lambda score, tau_q: (score - 1) / tau_q,
        "sampled_softmax": lambda score, tau_q: score / config.family.similarity.temperature,
    }[kind]
    logits = [
        [logit_of(score, tau_q) for score in line]
        for line, tau_q in zip(scores.tolist(), query.temperature.tolist(), strict=True)
    ]
    positive, hidden = batch.positive.tolist(), batch.roles().is_hidden.tolist()
    expected = oracles.losses.sampled_softmax(logits, positive, hidden)
    expected += 0.5 * oracles.losses.pointwise(logits, positive, hidden, step.objective.offset.item())
    if gates is not None:
        own = [gates[line, column].tolist() for line, column in enumerate(positive)]
        expected += 0.25 * oracles.losses.mutual_information(own)
    assert loss == pytest.approx(expected, rel=1e-4)


def test_mutual_information_reads_gates_of_others_too() -> None:
    config = small_config().with_family(terms=TermsConfig(mutual_information_weight=0.25, mutual_information_of="all"))
    positives = config.with_family(terms=TermsConfig(mutual_information_weight=0.25))
    model = DualEncoderTraining.of(config).model()
    batch = sampler_of(model).batch(0)
    query, items = model.encode_queries(batch.queries), model.encode_items(batch.items)

    def loss(of: RunConfig) -> float:
        torch.manual_seed(3)
        return DualEncoderTraining.of(of).training_step(model, in_one_process).eval()(batch).item()

    torch.manual_seed(3)
    columns = torch.randint(len(items), (len(query), 1)).squeeze(1).tolist()
    gates = model.score(query, items).gates
    own = [gates[line, column].tolist() for line, column in enumerate(batch.positive.tolist())]
    others = [gates[line, column].tolist() for line, column in enumerate(columns)]
    difference = oracles.losses.mutual_information(own + others) - oracles.losses.mutual_information(own)
    assert loss(config) - loss(positives) == pytest.approx(0.25 * difference, abs=1e-5)


def test_a_worker_without_queries_has_no_gates_of_others() -> None:
    config = small_config().with_family(
        terms=TermsConfig(mutual_information_of="all"), negatives=CrossDeviceNegatives()
    )
    family = DualEncoderTraining.of(config)
    model = family.model()
    features = model.query_features(COLOURED.inputs), model.item_features(THINGS)
    batch = InBatchSampler(COLOURED, *features, batch_size=1, seed=0, rank=1, num_workers=2).batch(0)
    assert len(batch.positive) == 0
    assert family.training_step(model, in_one_process)(batch).item() == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("similarity", ["mixture", "dot product"])
def test_pointwise_alone_is_its_equation(similarity: str) -> None:
    config = small_config(similarity).with_family(loss=PointwiseConfig(), terms=NO_TERMS)
    step, batch = _step_and_batch(config)
    scores, _ = step.model.score(step.model.encode_queries(batch.queries), step.model.encode_items(batch.items))
    logits = (scores / config.family.similarity.temperature).tolist()
    expected = oracles.losses.pointwise(logits, batch.positive.tolist(), batch.roles().is_hidden.tolist(), 0.0)
    assert step(batch).item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("similarity", ["mixture", "dot product"])
def test_maximum_likelihood_reads_bounded_heads_of_the_query(similarity: str) -> None:
    config = small_config(similarity)
    config = config.with_family(loss=MaximumLikelihoodConfig(), terms=NO_TERMS)
    step, batch = _step_and_batch(config)
    query = step.model.encode_queries(batch.queries)
    scores, _ = step.model.score(query, step.model.encode_items(batch.items))
    heads = step.objective.heads(query.components.flatten(1))
    counts = [[1000 ** oracles.vectors.sigmoid(value) for value in line] for line in heads.tolist()]
    is_relevant = batch.roles().is_hidden.scatter(1, batch.positive.unsqueeze(1), True)
    own, other = [(line[0], line[1]) for line in counts], [(line[2], line[3]) for line in counts]
    expected = oracles.losses.maximum_likelihood(scores.tolist(), is_relevant.tolist(), own, other)
    assert step(batch).item() == pytest.approx(expected, rel=1e-4)


def _step_and_batch(config: RunConfig) -> tuple[TrainingStep, TrainingBatch]:
    model = DualEncoderTraining.of(config).model()
    return DualEncoderTraining.of(config).training_step(model, in_one_process).eval(), sampler_of(model).batch(0)


@pytest.mark.parametrize("similarity", ["mixture", "dot product"])
def test_beside_shared_negatives_each_query_has_its_own_positive(similarity: str) -> None:
    """Against pairs scored one by one: the shared items, then the item that comes next."""
    config = small_history_config(similarity).with_family(
        loss=ContrastiveConfig(pointwise_weight=0.5), terms=TermsConfig(mutual_information_weight=0.25)
    )
    model = DualEncoderTraining.of(config).model()
    step = DualEncoderTraining.of(config).training_step(model, in_one_process).eval()
    batch = window_sampler().batch(1)

    query, items = model.encode_queries(batch.queries), model.encode_items(batch.items)
    logits, hidden, own_gates = [], [], []
    for line, own in enumerate(batch.positive.tolist()):
        pairs = [model.score(take(query, [line]), take(items, [row])) for row in [*range(batch.num_shared), own]]
        tau_q = query.temperature[line].item()
        logits.append([oracles.losses.beta_logit(pair.scores.item(), tau_q) for pair in pairs])
        hidden.append([row == batch.items[own] for row in batch.items[: batch.num_shared].tolist()] + [False])
        own_gates.append(None if pairs[-1].gates is None else pairs[-1].gates.flatten().tolist())
    positive = [batch.num_shared] * len(logits)
    expected = oracles.losses.sampled_softmax(logits, positive, hidden)
    expected += 0.5 * oracles.losses.pointwise(logits, positive, hidden, step.objective.offset.item())
    if similarity == "mixture":
        expected += 0.25 * oracles.losses.mutual_information(own_gates)
    assert any(map(any, hidden))
    assert step(batch).item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("similarity", ["mixture", "dot product"])
@pytest.mark.parametrize("shared_by", ["history", "query"])
def test_groups_have_negatives_of_their_own(shared_by: str, similarity: str) -> None:
    """Against pairs scored one by one: what its group drew, then the item that comes next."""
    config = small_history_config(similarity).with_family(
        loss=ContrastiveConfig(pointwise_weight=0.5), terms=TermsConfig(mutual_information_weight=0.25)
    )
    model = DualEncoderTraining.of(config).model()
    step = DualEncoderTraining.of(config).training_step(model, in_one_process).eval()
    batch = window_sampler(shared_by=shared_by).batch(1)
    query, items = model.encode_queries(batch.queries), model.encode_items(batch.items)
    logits, hidden, own_gates = [], [], []
    for line, own in enumerate(batch.positive.tolist()):
        drawn = batch.groups.negatives[batch.groups.of_query[line]].tolist()
        pairs = [model.score(take(query, [line]), take(items, [row])) for row in [*drawn, own]]
        tau_q = query.temperature[line].item()
        logits.append([oracles.losses.beta_logit(pair.scores.item(), tau_q) for pair in pairs])
        hidden.append([batch.items[row] == batch.items[own] for row in drawn] + [False])
        own_gates.append(None if pairs[-1].gates is None else pairs[-1].gates.flatten().tolist())
    positive = [batch.groups.negatives.shape[1]] * len(logits)
    expected = oracles.losses.sampled_softmax(logits, positive, hidden)
    expected += 0.5 * oracles.losses.pointwise(logits, positive, hidden, step.objective.offset.item())
    if similarity == "mixture":
        expected += 0.25 * oracles.losses.mutual_information(own_gates)
    assert any(map(any, hidden))
    assert step(batch).item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("num_workers", [2, 3])
def test_the_mean_of_weighted_slices_is_the_loss_of_the_whole(num_workers: int) -> None:
    config = small_history_config().with_family(terms=TermsConfig(mutual_information_weight=5.0))
    model = DualEncoderTraining.of(config).model()
    whole = DualEncoderTraining.of(config).training_step(model, in_one_process)(window_sampler().batch(1)).item()
    slices = [window_sampler(rank=rank, num_workers=num_workers).batch(1) for rank in range(num_workers)]

    parts: list[torch.Tensor] = []  # what the workers would give each other
    for batch in slices:
        DualEncoderTraining.of(config).training_step(model, lambda part: parts.append(part) or part)(batch)
    step = DualEncoderTraining.of(config).training_step(model, lambda part: torch.stack(parts).mean(dim=0))
    losses = [step(batch).item() for batch in slices]
    assert sum(losses) / num_workers == pytest.approx(whole, rel=1e-5)
    unweighted = [step(replace(batch, weight=1 / len(batch.positive))).item() for batch in slices]
    assert sum(unweighted) / num_workers != pytest.approx(whole, rel=1e-3)


@pytest.mark.parametrize("block_size", [0, 3])
@pytest.mark.parametrize("pooling", ["mean", "aggregation"])
def test_every_parameter_of_a_transformer_has_a_gradient(pooling: str, block_size: int) -> None:
    encoder = TransformerConfig(width=8, num_heads=2, hidden=8, dropout=0.0, pooling=pooling)
    config = small_config().with_family(encoder=encoder, negatives=CrossDeviceNegatives(block_size=block_size))
    step, batch = _text_step(config)
    step(batch).backward()
    for name, parameter in step.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad, name


@pytest.mark.parametrize("inputs", ["texts", "histories"])
@pytest.mark.parametrize("loss", EVERY_LOSS, ids=str)
def test_every_trained_parameter_has_a_gradient(inputs: str, loss: Loss) -> None:
    """Data-parallel training refuses parameters that the loss does not reach."""
    config = small_config() if inputs == "texts" else small_history_config()
    config = config.with_family(loss=loss)
    model = DualEncoderTraining.of(config).model()
    step = DualEncoderTraining.of(config).training_step(model, in_one_process)
    step(batches_of(model).batch(0)).backward()
    for name, parameter in step.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad, name
        assert parameter.grad is None or parameter.grad.isfinite().all(), name
    assert model.query_components.temperature.output.weight.requires_grad == (loss.kind in ("beta_nce", "exp_nce"))


@pytest.mark.parametrize("similarity", ["mixture", "dot product"])
@pytest.mark.parametrize("encode_size", [1, 4])
def test_gradient_caching_changes_no_gradient(similarity: str, encode_size: int) -> None:
    config = small_config(similarity).with_family(
        encoder=TransformerConfig(width=8, num_heads=2, hidden=8, dropout=0.0), negatives=CrossDeviceNegatives()
    )
    gradients = []
    for size in (0, encode_size):
        step, batch = _text_step(config.with_family(encode_size=size))
        step(batch).backward()
        gradients.append({name: p.grad for name, p in step.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        assert torch.allclose(gradient, gradients[1][name], rtol=1e-3, atol=1e-6), name


def test_what_is_computed_again_drops_out_as_before() -> None:
    encoder = TransformerConfig(width=8, num_heads=2, hidden=8, dropout=0.5)
    step, batch = _text_step(small_config().with_family(encoder=encoder, encode_size=2))
    weight = step.model.encoder.blocks[0].network[0].weight
    torch.manual_seed(0)
    step(batch).backward()
    expected, gradient = [], weight.grad.clone()
    with torch.no_grad():  # the slope along the gradient, from two losses with the same dropout
        for sign in (1, -1):
            weight += sign * 1e-3 * gradient
            torch.manual_seed(0)
            expected.append(step(batch).item())
            weight -= sign * 1e-3 * gradient
    assert (expected[0] - expected[1]) / 2e-3 == pytest.approx((gradient**2).sum().item(), rel=0.02)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("encode_size", "block_size"), [(0, 0), (2, 0), (0, 3)])
def test_a_gpu_has_the_gradient_of_a_processor(encode_size: int, block_size: int) -> None:
    encoder = TransformerConfig(width=8, num_heads=2, hidden=8, dropout=0.0, pooling="aggregation")
    config = small_config().with_family(
        encoder=encoder, encode_size=encode_size, negatives=CrossDeviceNegatives(block_size=block_size)
    )
    gradients = []
    for device in ("cpu", "cuda"):
        step, batch = _text_step(config)
        step.to(device)(batch.to(device)).backward()
        gradients.append({name: p.grad.cpu() for name, p in step.named_parameters() if p.grad is not None})
    for name, gradient in gradients[0].items():
        assert torch.allclose(gradient, gradients[1][name], rtol=1e-2, atol=1e-5), name


def test_gradient_caching_forgets_activations() -> None:
    """What autograd keeps between forward and backward pass."""
    kept = {}
    for size in (0, 4):
        encoder = TransformerConfig(width=32, num_heads=2, hidden=128, dropout=0.0)
        config = small_config("dot product").with_family(encoder=encoder, encode_size=size)
        step, batch = _text_step(replace(config, training=replace(config.training, batch_size=32)))
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, s=sizes: s.append(t.numel()) or t, lambda t: t):
            step(batch)
        kept[size] = sum(sizes)
    assert kept[4] < kept[0] / 4


def test_bfloat16_is_of_the_encoder_alone() -> None:
    config = small_config().with_family(encoder=TransformerConfig(width=8, num_heads=2, hidden=8, dropout=0.0))
    losses, dtypes = {}, set()
    for precision in ("float32", "bfloat16"):
        training = replace(config.training, precision=precision)
        step, batch = _text_step(replace(config, training=training))
        step.model.encoder.blocks[0].network.register_forward_hook(lambda _, inputs, out: dtypes.add(out.dtype))
        losses[precision] = step(batch)
        losses[precision].backward()
        assert {p.grad.dtype for p in step.parameters() if p.grad is not None} == {torch.float32}
    assert dtypes == {torch.float32, torch.bfloat16}
    assert losses["bfloat16"].dtype == torch.float32
    assert losses["bfloat16"].item() == pytest.approx(losses["float32"].item(), rel=0.05)
    assert losses["bfloat16"].item() != losses["float32"].item()


def _text_step(config: RunConfig) -> tuple[TrainingStep, TrainingBatch]:
    model = DualEncoderTraining.of(config).model()
    model.encoder.learn([*COLOURED.inputs, *THINGS])
    features = model.query_features(COLOURED.inputs), model.item_features(THINGS)
    sampler = PairSampler(COLOURED, *features, batch_size=config.training.batch_size, num_items=16, seed=0)
    return DualEncoderTraining.of(config).training_step(model, in_one_process), sampler.batch(0)
