"""A mixture beside a dot product of as many numbers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rails_ray.counting import shown
from rails_ray.families.advising import FEW, MOST_STEPS, MixtureComparison, compare
from rails_ray.families.config import DataConfig, RunConfig
from rails_ray.families.data import for_data, read_data
from rails_ray.families.in_process import one_thread
from rails_ray.families.recipes import by_name, names
from rails_ray.families.training_family import training_family
from rails_ray.families.vector_items.storing import FullItems, PqItems
from rails_ray.modules.schedule import TrainingConfig
from rails_ray.storage.filesystem import Storage
from rails_ray.training.piece import Given, fit
from support.data_folders import write_sequence_data, write_text_data
from support.examples import small_bm25_config, small_config, small_history_config, small_vector_config, trained_items


def test_a_dot_product_stores_as_many_numbers_of_an_item() -> None:
    other = training_family(small_config()).as_dot_product()
    assert other is not None
    family: Any = other.family
    assert family.similarity.kind == "dot_product"
    assert family.components.width == 3 * 6 + 2 * 2  # two components, their mean, and the gate
    state = training_family(other).model().encode_items(training_family(other).model().item_features(["red"]))
    assert state.components.shape == (1, 1, 22)
    assert replace(small_config(), family=other.family) == other


def test_what_a_dot_product_cannot_have_is_left_out() -> None:
    users = small_history_config()
    users = users.with_family(encoder=replace(users.family.encoder, num_users=8))
    codes = small_config().with_family(items=PqItems(num_subspaces=3, num_codewords=4))
    for config in (users, codes):
        other = training_family(config).as_dot_product()
        assert other is not None
        family: Any = other.family
        assert getattr(family.encoder, "num_users", 0) == 0
        assert family.items == FullItems()


@pytest.mark.parametrize(
    "config",
    [
        small_config("dot product"),
        small_bm25_config(),
        small_vector_config("mixture of given"),
        small_config().with_family(items=trained_items()),
    ],
)
def test_a_run_without_such_a_dot_product(config: RunConfig, tmp_path: Path) -> None:
    assert training_family(config).as_dot_product() is None
    read = read_data(replace(small_config(), data=DataConfig(folder=str(write_text_data(tmp_path)))), Storage("."))
    assert compare(training_family(config), read, Storage(str(tmp_path))) is None


def test_every_recipe_of_a_mixture_has_one() -> None:
    mixtures = {name for name in names() if training_family(by_name(name)).as_dot_product() is not None}
    assert mixtures == {name for name in names() if "-mol" in name}


@pytest.mark.parametrize("form", ["text", "history"])
def test_both_are_trained_anew_for_a_tenth_of_the_steps(form: str, tmp_path: Path) -> None:
    """As runs of so few steps: what validation says of such runs is what the comparison says."""
    write, config = (
        (write_text_data, small_config()) if form == "text" else (write_sequence_data, small_history_config())
    )
    folder, storage = write(tmp_path / "data"), Storage(str(tmp_path / "storage"))
    config = replace(config, data=DataConfig(folder=str(folder)))
    if form == "history":
        config = config.with_family(encoder=replace(config.family.encoder, num_items=0))
    config = replace(config, training=replace(config.training, num_steps=300, validate_every=5, patience=1))
    read = read_data(config, storage)
    config = for_data(config, read)
    counted = list[tuple[int, int, str]]()
    with shown(lambda *done: counted.append(done)):
        found = compare(training_family(config), read, storage)
    assert found is not None
    assert (found.num_steps, found.all_steps, found.num_queries) == (30, 300, len(read.queries["valid"]))
    assert (30, 30, "steps of a mixture") in counted
    assert (30, 30, "steps of a dot product") in counted
    other = training_family(config).as_dot_product()
    assert other is not None
    for rate, own in ((found.mixture, config), (found.dot_product, other)):
        few = training_family(replace(own, training=replace(own.training, num_steps=30, validate_every=0)))
        with one_thread():
            fitted = fit(few.pieces()[0], Given(read=read, storage=storage, run="one"))
        assert fitted is not None
        assert rate == pytest.approx(fitted.validation["hit_rate"][10])
    assert found == compare(training_family(config), read, storage)
    assert not storage.list("runs")


@pytest.mark.long
def test_a_long_run_is_compared_after_few_steps(tmp_path: Path) -> None:
    config = replace(small_config(), data=DataConfig(folder=str(write_text_data(tmp_path))))
    config = replace(config, training=TrainingConfig(num_steps=10**6, batch_size=4))
    found = compare(training_family(config), read_data(config, Storage(".")), Storage(str(tmp_path)))
    assert found is not None
    assert (found.num_steps, found.all_steps) == (MOST_STEPS, 10**6)


@pytest.mark.parametrize(
    ("p", "p_dot_product", "verdict"),
    [
        (0.001, 1.0, "the mixture's gain is beyond noise (p = 0.001)"),
        (0.999, 0.0123, f"the dot product is ahead beyond noise (p = 0.012); {FEW}"),
        (0.3, 0.72, f"the difference is within noise (p = 0.3); {FEW}"),
    ],
)
def test_the_sentence(p: float, p_dot_product: float, verdict: str) -> None:
    assert MixtureComparison(40, 400, 196, 2000, 0.85, 0.8375, p, p_dot_product).sentence == (
        "mixture or dot product: after 40 of 400 steps each, HR@10 on 2,000 validation queries is 0.8500 for the "
        f"mixture and 0.8375 for the dot product, both with 196 numbers an item; {verdict}"
    )
