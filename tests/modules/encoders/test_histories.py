"""What encoders of histories share: groups of similar lengths, and users."""

from typing import Any

import numpy as np
import pytest
import torch

import oracles.encoders
from rails_ray.data.queries import Visits
from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.modules.encoders import histories
from rails_ray.modules.encoders.hashing import hashed
from rails_ray.modules.encoders.histories import Histories
from rails_ray.modules.encoders.sasrec import Sasrec, SasrecConfig
from rails_ray.modules.similarities.mol import MixtureOfLogitsConfig
from support.examples import small_config, small_history_config, window_sampler

USERS = 11


def encoder(**sizes: Any) -> Sasrec:
    torch.manual_seed(0)
    config = SasrecConfig(width=4, max_length=6, num_items=9, dropout=0.0, **sizes)
    return Sasrec(config, own_width=3).double().eval()


@pytest.mark.parametrize("size", [1, 2, 3, 9])
def test_groups_are_the_batch_in_parts(size: int) -> None:
    generator = np.random.default_rng(0)
    lengths = [6, 1, 3, 3, 2, 6, 1]
    asked = np.concatenate([6 * b + np.arange(length) for b, length in enumerate(lengths)])
    rows = torch.from_numpy(generator.integers(9, size=(7, 6)))
    times = rows.cumsum(1)
    whole = Histories(rows, torch.from_numpy(asked), times, torch.arange(7))
    assert whole.lengths().tolist() == lengths
    seen = []
    for group, own in whole.groups(size):
        longest = group.rows.shape[1]
        assert len(group) <= size
        assert longest == group.lengths().max()
        for column, of_whole in ((group.rows, rows), (group.times, times)):
            assert torch.equal(column.flatten()[group.asked], of_whole.flatten()[whole.asked[own]])
        assert torch.equal(group.users[group.asked // longest], whole.asked[own] // 6)
        seen += own.tolist()
    assert sorted(seen) == list(range(len(asked)))


@pytest.mark.parametrize("positions_from", ["oldest", "newest"])
def test_groups_give_what_the_batch_at_once_gives(positions_from: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = encoder(num_users=USERS, positions_from=positions_from)
    features = window_sampler(max_length=6).batch(1).queries
    at_once = made._asked(features, made.embeddings(features.rows))
    monkeypatch.setattr(histories, "GROUP", 2)
    calls = []
    monkeypatch.setattr(made, "_asked", lambda own, rows, ask=made._asked: calls.append(len(own)) or ask(own, rows))
    assert torch.allclose(made.queries(features), at_once, atol=1e-12)
    assert calls == [2, 2, 2]


def test_positions_count_from_the_newest_item_of_each_history_whatever_the_padding() -> None:
    made = encoder(positions_from="newest")
    weights = {name: tensor.tolist() for name, tensor in made.state_dict().items()}
    short, long = [7, 2], [1, 8, 3, 3, 0]
    rows = torch.tensor([[*short, 5, 5, 5, 5], [*long, 4]])
    found = made.queries(Histories(rows, torch.tensor([0, 1, *range(6, 11)])))
    expected = [line for history in (short, long) for line in oracles.encoders.sasrec(history, weights, 2, 1, True)]
    assert torch.allclose(found, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-9)
    assert not torch.allclose(found, encoder().queries(Histories(rows, torch.tensor([0, 1, *range(6, 11)]))))


def test_long_histories_are_encoded_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = encoder()
    monkeypatch.setattr(histories, "GROUP", 2)
    calls = []
    monkeypatch.setattr(made, "_asked", lambda own, rows, ask=made._asked: calls.append(len(own)) or ask(own, rows))
    made.queries(Histories(torch.zeros(5, 6, dtype=torch.int64), torch.arange(30)))
    assert calls == [5]


def test_a_user_is_the_end_of_a_representation_and_a_stranger_zeros() -> None:
    made = encoder(num_users=USERS)
    inputs = Visits.joined([Visits.one([1, 2], user=7), Visits.one([1, 2]), Visits.one([3], user=2**62 + 5)])
    found = made.queries(made.query_features(inputs))
    assert found.shape == (3, made.query_width) == (3, 7)
    rows = hashed(torch.tensor([7, 2**62 + 5]), 0, USERS)
    assert torch.equal(found[[0, 2], 4:], made.users.weight[rows])
    assert torch.equal(found[1, 4:], torch.zeros(3))
    assert torch.equal(found[0, :4], found[1, :4])
    assert torch.equal(made.queries(made.query_features([[1, 2]]))[0], found[1])


def test_training_drops_elements_of_users() -> None:
    made = encoder(num_users=USERS, user_dropout=0.25).train()
    with torch.no_grad():
        made.users.weight.fill_(1.0)
    features = made.query_features(Visits.joined([Visits.one([1], user=user) for user in range(2000)]))
    drawn = made.queries(features)[:, 4:]
    assert drawn.unique().tolist() == pytest.approx([0, 4 / 3])
    assert (drawn == 0).double().mean().item() == pytest.approx(0.25, abs=0.02)


def test_training_drops_elements_of_the_items_that_it_compares() -> None:
    made = encoder(item_dropout=0.25)
    with torch.no_grad():
        made.embeddings.weight.fill_(1.0)
    rows = made.item_features(np.zeros(2000, np.int64))
    assert made.items(rows).unique().tolist() == [1.0]
    drawn = made.train().items(rows)
    assert drawn.unique().tolist() == pytest.approx([0, 4 / 3])
    assert (drawn == 0).double().mean().item() == pytest.approx(0.25, abs=0.02)
    history = Histories(torch.tensor([[1, 2, 3]]), torch.arange(3))
    assert torch.equal(made.queries(history), made.eval().queries(history))


def test_a_user_is_a_component_of_the_query() -> None:
    config = small_history_config()
    config = config.with_family(encoder=SasrecConfig(width=8, max_length=4, num_items=9, num_users=USERS))
    model = DualEncoderTraining.of(config).model().eval()
    inputs = Visits.joined([Visits.one([1, 2], user=7), Visits.one([1, 2])])
    state = model.encode_queries(model.query_features(inputs))
    assert state.components.shape == (2, 2, 6)
    expected = torch.nn.functional.normalize(model.encoder.users.weight[hashed(torch.tensor([7]), 0, USERS)])
    assert torch.allclose(state.components[0, 1], expected[0])
    assert not state.components[1, 1].any()
    assert torch.allclose(state.components[0, 0], state.components[1, 0])
    step = DualEncoderTraining.of(config).training_step(model, lambda tensor: tensor)
    step(window_sampler().batch(0)).backward()  # nobody is known there
    gradient = model.encoder.users.weight.grad
    assert gradient is None or not gradient.any()


@pytest.mark.parametrize(
    "similarity", [small_config("dot product").family.similarity, MixtureOfLogitsConfig(num_query_components=1)]
)
def test_users_need_a_component(similarity: object) -> None:
    config = small_history_config()
    encoder = SasrecConfig(num_users=USERS)
    with pytest.raises(ValueError, match=r"num_users must be 0 without a mixture of at least 2 .*, got 11"):
        config.with_family(encoder=encoder, similarity=similarity)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("num_users", -1, "num_users must be at least 0, got -1"),
        ("item_dropout", 1.0, r"item_dropout must be in \[0, 1\), got 1\.0"),
        ("user_dropout", 1.0, r"user_dropout must be in \[0, 1\), got 1\.0"),
    ],
)
def test_sizes_out_of_range(field: str, value: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SasrecConfig(**{field: value})


def test_items_that_the_model_does_not_know() -> None:
    own, message = encoder(), "item rows must be those of the 9 items of the model, from 0 on, got "
    with pytest.raises(ValueError, match=f"{message}9"):
        own.query_features([[0, 8], [3, 9]])
    with pytest.raises(ValueError, match=f"{message}-1"):
        own.item_features(np.array([0, -1]))
