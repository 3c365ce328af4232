"""What every piece must do; a new family is one line in FAMILIES, a piece that takes no step one in STEPLESS."""

import json
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from rails_ray.data.dataset import DataSet
from rails_ray.families.config import DataConfig, RunConfig, to_json
from rails_ray.families.data import for_data, read_data
from rails_ray.families.dual_encoder.negatives import (
    HardNegatives,
    InBatchNegatives,
    MixedNegatives,
    PopularityNegatives,
)
from rails_ray.families.training_family import training_family
from rails_ray.modules.encoders.hstu import HstuConfig
from rails_ray.modules.encoders.text import TransformerConfig
from rails_ray.modules.losses.config import TermsConfig
from rails_ray.modules.quantizers.dvsq import DvsqConfig
from rails_ray.storage import runs
from rails_ray.storage.filesystem import Storage
from rails_ray.training.piece import Fitted, Given, Piece, fit, steps_of
from support.data_folders import write_sequence_data, write_text_data
from support.examples import (
    of_numbers,
    small_bm25_config,
    small_config,
    small_history_config,
    small_solar_config,
    trained_items,
)
from support.pieces import CountingPiece
from support.ranked import small_rbe_config, write_scored_data

NUM_STEPS = 12
CUT_OFF_AT = 5
NO_TERMS = TermsConfig(mutual_information_weight=0.0)  # whose mean over workers needs the workers
TRANSFORMER = TransformerConfig(width=8, num_heads=2, hidden=8, dropout=0.2)


FAMILIES: dict[str, tuple[RunConfig, Callable[[Path], Path]]] = {
    "pairs": (small_config().with_family(terms=NO_TERMS), write_text_data),
    "in batch": (small_config("dot product").with_family(negatives=InBatchNegatives()), write_text_data),
    "transformer": (small_config("dot product").with_family(encoder=TRANSFORMER), write_text_data),
    "histories": (small_history_config(dropout=0.2, num_items=0).with_family(terms=NO_TERMS), write_sequence_data),
    "hard negatives": (
        small_config().with_family(terms=NO_TERMS, negatives=HardNegatives(num_items=16, num_hard=2, mine_every=3)),
        write_text_data,
    ),
    "mixed negatives": (
        small_config().with_family(terms=NO_TERMS, negatives=MixedNegatives(num_items=8)),
        write_text_data,
    ),
    "popular negatives of HSTU with users": (
        small_history_config().with_family(
            terms=NO_TERMS,
            encoder=HstuConfig(width=8, num_heads=2, max_length=4, num_users=7),
            negatives=PopularityNegatives(num_items=6, shared_by="history"),
        ),
        write_sequence_data,
    ),
    "SOLAR": (small_solar_config(num_chunks=2), write_text_data),
    "SOLAR of vectors": of_numbers("vector"),
    "BM25": (small_bm25_config(), write_text_data),
    "RBE": (small_rbe_config(), write_scored_data),
    "codebooks after": (small_config().with_family(terms=NO_TERMS, items=trained_items()), write_text_data),
    "codebooks jointly": (
        small_config().with_family(terms=NO_TERMS, items=trained_items(when="jointly", method=DvsqConfig())),
        write_text_data,
    ),
}
STEPLESS = {"counting": CountingPiece()}
SHARED = ["pairs", "in batch", "histories"]  # tokens of a transformer, and codebooks, come from the first worker


@dataclass(frozen=True)
class Case:
    config: RunConfig
    given: Given
    pieces: list[Piece]

    def fit(self, piece: Piece, **changes: Any) -> Fitted:
        fitted = fit(piece, replace(self.given, **changes))
        assert fitted is not None
        return fitted

    def in_order(self) -> Iterator[Piece]:
        """Each piece, once those before it are done."""
        for piece in self.pieces:
            yield piece
            self.store(piece)

    def store(self, piece: Piece) -> Fitted:
        fitted = self.fit(piece)
        runs.write(
            self.given.storage,
            runs.piece_run(self.given.run, piece.name),
            weights=fitted.weights,
            validation=json.dumps(fitted.validation).encode(),
            training=fitted.training,
            config=to_json(self.config),
        )
        return fitted

    def last(self) -> Piece:
        """The last piece, once those before it are done."""
        for piece in self.pieces[:-1]:
            self.store(piece)
        return self.pieces[-1]


def case_of(name: str, folder: Path, seed: int = 0) -> Case:
    config, write_data = FAMILIES["pairs"] if name in STEPLESS else FAMILIES[name]
    training = replace(config.training, num_steps=NUM_STEPS, validate_every=4)
    config = replace(config, seed=seed, training=training, data=DataConfig(folder=str(write_data(folder / "data"))))
    storage = Storage(str(folder / f"storage-{seed}"))
    read: DataSet = read_data(config, storage)
    own = training_family(for_data(config, read))
    own.begin(read)(storage, "r")
    pieces = [STEPLESS[name]] if name in STEPLESS else list(own.pieces())
    return Case(own.config, Given(read=read, storage=storage, run="r"), pieces)


@pytest.fixture(params=[*FAMILIES, *STEPLESS])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    return case_of(request.param, tmp_path)


def tensors(fitted: Fitted) -> dict[str, torch.Tensor]:
    return safetensors.torch.load(fitted.weights)


def equal(one: Fitted, other: Fitted) -> bool:
    """To the bit, but for the time that it took."""
    a, b = tensors(one), tensors(other)
    with_time = one.training | {"seconds": 0}, other.training | {"seconds": 0}
    return (
        a.keys() == b.keys()
        and all(torch.equal(a[name], b[name]) for name in a)
        and with_time[0] == with_time[1]
        and one.validation == other.validation
    )


def test_it_is_a_piece_that_can_travel(case: Case) -> None:
    names = [piece.name for piece in case.pieces]
    assert len(set(names)) == len(names)
    assert all(names) or names == [""], "pieces have a folder each, or the one piece has the run's own"
    for place, piece in enumerate(case.pieces):
        assert isinstance(piece, Piece)
        assert set(piece.after) <= set(names[:place])
        assert pickle.loads(pickle.dumps(piece)) == piece


def test_it_steps_as_its_config_says_or_not_at_all(case: Case) -> None:
    for piece in case.in_order():
        prepared, steps = piece.prepare(case.given), [0]
        assert (prepared.steps is None) == (piece.training is None)
        fitted = fit(piece, case.given, report=lambda done, loss, steps=steps: steps.append(done))
        assert fitted is not None
        taken = 0 if piece.training is None else piece.training.num_steps
        assert steps == list(range(taken + 1))
        assert steps_of(piece) == max(taken, 1)
        assert len(fitted.training["losses"]) == taken
        assert fitted.training["seconds"] > 0


def test_validations_of_a_mixture_measure_its_gates(tmp_path: Path) -> None:
    case = case_of("pairs", tmp_path)
    validations = case.fit(case.last()).training["validations"]
    names = {"gate_entropy", "gate_entropy_of_pairs", "certified_fraction", "recall_of_average"}
    assert [set(one["measures"]) for one in validations] == [names] * (NUM_STEPS // 4)


def test_what_it_comes_to_is_json_and_its_weights_those_of_its_module(case: Case) -> None:
    for piece in case.in_order():
        fitted = case.fit(piece)
        assert json.loads(json.dumps(fitted.validation)).keys() == fitted.validation.keys()
        assert "cutoff_mass" in fitted.validation
        assert tensors(fitted).keys() == piece.prepare(case.given).module.state_dict().keys()


@pytest.mark.long
def test_seed_and_data_decide_alone(case: Case) -> None:
    for piece in case.in_order():
        torch.manual_seed(1)
        np.random.seed(1)
        first = case.fit(piece)
        torch.manual_seed(2)
        np.random.seed(2)
        assert equal(first, case.fit(piece))


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "BM25"])  # which only counts
def test_another_seed_trains_another_model(name: str, tmp_path: Path) -> None:
    cases = [case_of(name, tmp_path, seed) for seed in (0, 1)]
    first, other = (tensors(case.fit(case.pieces[0])) for case in cases)
    assert any(not torch.equal(first[key], other[key]) for key in first if first[key].shape == other[key].shape)


def test_from_a_checkpoint_it_goes_on_as_if_nothing_had_happened(case: Case) -> None:
    for piece in case.in_order():
        saved: list[bytes] = []
        whole = fit(piece, case.given, save=saved.append, is_due=lambda: True)
        assert whole is not None
        assert len(saved) == (0 if piece.training is None else NUM_STEPS)
        for checkpoint in saved[CUT_OFF_AT - 1 : CUT_OFF_AT]:
            assert equal(case.fit(piece, checkpoint=checkpoint), whole)


@pytest.mark.parametrize("name", SHARED)
def test_where_the_gradient_is_shared_slices_add_up(name: str, tmp_path: Path) -> None:
    """The mean of the workers' losses and gradients is that of the whole batch, as far as items are shared."""
    case = case_of(name, tmp_path)
    piece = case.last()
    assert piece.shares_gradient
    piece.check_workers(2)

    def gone(rank: int, num_workers: int) -> tuple[float, dict[str, torch.Tensor], int]:
        steps = piece.prepare(replace(case.given, rank=rank, num_workers=num_workers)).steps
        assert steps is not None
        assert list(steps.seed) == [0, rank]
        batch: Any = steps.batch_of(3)
        loss = steps.step.eval()(batch)
        loss.backward()
        gradients = {name: one.grad for name, one in steps.step.named_parameters() if one.grad is not None}
        return loss.item(), gradients, len(batch.positive)

    whole, slices = gone(0, 1), [gone(rank, 2) for rank in range(2)]
    assert sum(num for _, _, num in slices) == whole[2]
    if name == "in batch":  # each worker has negatives of its own
        return
    assert sum(loss for loss, _, _ in slices) / 2 == pytest.approx(whole[0], rel=1e-5)
    for key, gradient in whole[1].items():
        mean = (slices[0][1][key] + slices[1][1][key]) / 2
        assert torch.allclose(mean, gradient, rtol=1e-3, atol=1e-6), key


@pytest.mark.parametrize("name", SHARED)
def test_only_the_first_worker_leaves_anything_behind(name: str, tmp_path: Path) -> None:
    case, saved = case_of(name, tmp_path), list[bytes]()
    second = replace(case.given, rank=1, num_workers=2)
    assert fit(case.last(), second, save=saved.append, is_due=lambda: True) is None
    assert not saved


def test_workers_that_cannot_share_its_batches() -> None:
    [piece] = training_family(small_config()).pieces()
    piece.check_workers(16)
    with pytest.raises(ValueError, match=r"training\.batch_size must be a multiple of the 3 workers, got 16"):
        piece.check_workers(3)
    for config in (small_config().with_family(negatives=InBatchNegatives()), small_solar_config()):
        for piece in training_family(config).pieces():
            piece.check_workers(3)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_pieces_of_a_family_make_its_model(name: str, tmp_path: Path) -> None:
    case = case_of(name, tmp_path)
    own = training_family(case.config)
    weights = [(f"{piece.name}/model.safetensors", case.store(piece).weights) for piece in case.pieces]
    model = own.trained_model(weights)
    report = own.validation(case.given.storage, "r", model, case.given.read)
    assert report.num_queries == len(case.given.read.queries["valid"])
    if not name.startswith("SOLAR"):
        of_last = case.fit(case.pieces[-1]).validation
        assert report.to_dict().items() <= of_last.items()
