"""The bench of public tables: it goes on where it was cut off, and compares a mixture with as many numbers."""

from dataclasses import replace
from pathlib import Path

import pytest

from jobs.benches import public_tables
from jobs.benches.public_tables import Arguments, config_of, main, runs
from jobs.benches.record import recorded
from rails_ray.training import loop
from support.data_folders import write_sequence_data


@pytest.fixture
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Arguments:
    write_sequence_data(tmp_path / "data" / "walks")
    monkeypatch.setattr("jobs.benches.record.RESULTS", tmp_path / "results")
    return Arguments(
        data=tmp_path / "data",
        state=tmp_path / "state",
        sets=("walks",),
        recipes=("sasrec-mol", "sasrec-mol-wide"),
        seeds=(0,),
        epochs=40.0,
        width=8,
        negatives=64,
    )


@pytest.mark.long
def test_what_is_trained_and_compared(arguments: Arguments) -> None:
    main(arguments)
    ends = {row["recipe"]: row for row in recorded(public_tables.NAME) if row.get("kind") == "end"}
    assert ends.keys() == {"sasrec-mol", "sasrec-mol-wide"}
    mixture, wide = ends["sasrec-mol"], ends["sasrec-mol-wide"]
    assert mixture["numbers"] == wide["numbers"] == wide["width"] == 8 + 4
    assert mixture["width"] == 8
    [compared] = [row for row in recorded(public_tables.NAME) if row.get("kind") == "comparison"]
    assert compared["hr@10"] == pytest.approx(mixture["hr@10"] - wide["hr@10"])
    main(replace(arguments, only="train"))
    assert len([row for row in recorded(public_tables.NAME) if row.get("kind") == "end"]) == 2
    shown = public_tables.table()
    assert (shown.row_count, list(shown.columns[1].cells)) == (2, ["sasrec-mol", "sasrec-mol-wide"])


@pytest.mark.long
def test_a_training_that_is_cut_off_ends_as_if_it_had_not_been(
    arguments: Arguments, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(public_tables, "SAVE_EVERY_S", 0.0)
    only = replace(arguments, recipes=("sasrec-mol",), only="train")
    main(only)
    [whole] = [row for row in recorded(public_tables.NAME) if row.get("kind") == "end"]
    elsewhere, finite, saves = replace(only, state=arguments.state / "again"), loop._check_finite, list[int]()

    def cut_off(step: object, number: int) -> None:
        saves.append(number)
        if len(saves) == 5:
            raise KeyboardInterrupt
        finite(step, number)

    with monkeypatch.context() as patched:
        patched.setattr(loop, "_check_finite", cut_off)
        with pytest.raises(KeyboardInterrupt):
            main(elsewhere)
    assert [place.name for place in elsewhere.state.rglob("*.safetensors")] == [public_tables.CHECKPOINT]
    main(elsewhere)
    again = [row for row in recorded(public_tables.NAME) if row.get("kind") == "end"][-1]
    assert {**again, "seconds": 0, "execution": ""} == {**whole, "seconds": 0, "execution": ""}


@pytest.mark.long
def test_trials_are_equal_and_the_best_is_trained(arguments: Arguments) -> None:
    tried = replace(arguments, trials=2, trial_epochs=2.0, every=4.0, patience=8.0)
    main(replace(tried, only="tune"))
    main(replace(tried, only="tune"))  # repeats nothing
    trials = [row for row in recorded(public_tables.NAME) if row.get("kind") == "trial"]
    assert [(row["recipe"], row["number"]) for row in trials] == [
        (recipe, number) for recipe in arguments.recipes for number in range(2)
    ]
    assert trials[0]["values"] == trials[2]["values"] == public_tables.drawn(0)
    for run, _ in runs(tried):
        best = max((row for row in trials if row["recipe"] == run.recipe), key=lambda row: row["mrr"])["values"]
        family = run.config.family
        assert family.similarity.temperature == best["temperature"]
        assert run.config.training.learning_rate == best["learning_rate"]
        assert (family.encoder.dropout, family.encoder.item_dropout) == (best["dropout"], best["item_dropout"])
        assert run.config.training.patience == 2


def test_settings_of_a_data_set_are_the_public_ones(arguments: Arguments) -> None:
    [(_, read)] = list(runs(replace(arguments, recipes=("esasrec",))))
    for name, factor in (("amazon-toys", 1), ("amazon-sports", 2), ("amazon-beauty", 4), ("ml-1m", 4)):
        encoder = config_of("esasrec", name, read, 0, arguments, {}).family.encoder
        assert encoder.swiglu_factor == factor
        assert (encoder.max_length, encoder.num_blocks) == ((200, 2) if name == "ml-1m" else (50, 1))


def test_only_a_mixture_has_a_dot_product_of_as_many_numbers(arguments: Arguments) -> None:
    [(_, read)] = list(runs(replace(arguments, recipes=("sasrec",))))
    with pytest.raises(ValueError, match="a recipe with -wide must be of a mixture, got sasrec-wide"):
        config_of("sasrec-wide", "walks", read, 0, arguments, {})


def test_binary_cross_entropy_has_one_negative_for_each_position(arguments: Arguments) -> None:
    [(run, read)] = list(runs(replace(arguments, recipes=("sasrec-bce",), epochs=800.0)))
    assert run.facts["negatives"] == 1
    fitting = public_tables.Fitting.of(run.config, read, "cpu")
    batch = fitting.batch(0)
    assert batch.num_shared == 0
    assert batch.groups.is_one_each
    assert batch.groups.negatives.shape == (len(batch.positive), 1)
    losses = list[float]()
    fitting.run(report=lambda done, loss: losses.append(loss))
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])


def test_trials_of_a_former_recipe_are_not_taken(arguments: Arguments) -> None:
    tried = replace(arguments, recipes=("sasrec",), trials=1, trial_epochs=1.0, only="tune")
    main(tried)
    [(run, _)] = list(runs(tried))
    assert len(public_tables.trials_of(run, tried)) == 1
    [(other, _)] = list(runs(replace(tried, negatives=32)))
    assert public_tables.trials_of(other, tried) == []
