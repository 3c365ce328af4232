"""What `quality` compares: data sets, encoders and similarities as configs, and what is searched for each.

    similarity   stored numbers of an item
    dot          the width that trials choose, one of WIDTHS
    wide         a dot product of as many numbers as `mol` stores
    mol          P_X components, P gate numbers and the mean component

A cell is one of each, and a seed. All that a cell does not name is the same for the three: encoder, batches, epochs,
number of negatives unless trials choose it.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from jobs.benches import vectors
from rails_ray.data.dataset import DataSet
from rails_ray.families.config import DataConfig, RunConfig
from rails_ray.families.data import for_data, read_data
from rails_ray.families.dual_encoder.config import DualEncoderConfig
from rails_ray.families.dual_encoder.negatives import CrossDeviceNegatives, UniformNegatives
from rails_ray.kernels.mol_scan import Activation
from rails_ray.modules.encoders.components import ComponentsConfig
from rails_ray.modules.encoders.hstu import HstuConfig
from rails_ray.modules.encoders.sasrec import SasrecConfig
from rails_ray.modules.encoders.text import TransformerConfig
from rails_ray.modules.encoders.two_tower import TwoTowerConfig
from rails_ray.modules.encoders.vectors import VectorsConfig
from rails_ray.modules.losses.config import ContrastiveConfig
from rails_ray.modules.schedule import TrainingConfig
from rails_ray.modules.similarities.dot_product import DotProductConfig
from rails_ray.modules.similarities.mol import MixtureOfLogitsConfig
from rails_ray.storage.filesystem import Storage

SimilarityName = Literal["dot", "wide", "mol"]
Gates = Literal["all", "sides"]
WIDTHS = (32, 64, 128, 256, 512)
NUM_USERS = 2**14  # rows that the 6,040 or 22,363 users of a data set share
HISTORIES = {"ml-1m": 200, "amazon-beauty": 50, "amazon-toys": 50, "amazon-sports": 50}  # data of histories, and T


@dataclass(frozen=True)
class Settings:
    """What trials choose, dropout aside.

    width: of the dot product's vectors; of a component of the mixture.
    dropout: of the encoder of histories.
    gate_dropout: of the mixture.
    max_gradient_norm: of a step; no trial chooses it.
    """

    width: int = 64
    temperature: float = 0.05
    learning_rate: float = 1e-3
    num_negatives: int = 128
    dropout: float = 0.2
    gate_dropout: float = 0.2
    max_gradient_norm: float = 0.0


@dataclass(frozen=True)
class Cell:
    """
    encoder: sasrec, esasrec, hstu; towers, transformer; vectors.
    user: whether the user is a component of the mixture.
    gates: what the mixture's gates read: all that the paper's do, or the query and the item without the logits.
    activation: between the two layers of w in the mixture's gates.
    """

    data: str
    encoder: str
    similarity: SimilarityName
    seed: int = 0
    user: bool = False
    gates: Gates = "all"
    activation: Activation = "silu"

    @staticmethod
    def of_row(row: Mapping[str, Any]) -> "Cell":
        """The cell that a row is of."""
        named = {field.name: row[field.name] for field in fields(Cell) if field.name in row}
        return Cell(**named)

    @property
    def label(self) -> str:
        """The similarity, as tables show it."""
        gates = ", gates without logits" * (self.gates == "sides") + ", ReLU" * (self.activation == "relu")
        return self.similarity + " + user" * self.user + gates

    @property
    def name(self) -> str:
        """A folder's name."""
        similarity = self.similarity + "-user" * self.user + "-sides" * (self.gates == "sides")
        similarity += "-relu" * (self.activation == "relu")
        return "-".join([self.data, self.encoder, similarity, str(self.seed)])

    @property
    def tries_gate_dropout(self) -> bool:
        """Whether trials choose it: where gates were seen to learn the pairs of training, and a trial is short."""
        return self.similarity == "mol" and self.encoder == "vectors"

    @property
    def is_of_histories(self) -> bool:
        return self.data in HISTORIES


def data_of(cell: Cell, folder: Path, state: Path, *, is_final: bool) -> DataSet:
    """The data set. The final training on histories reads the validation item too, as the paper's does; what was chosen
    on it is fixed by then.

    Args:
        state: where texts are kept as pretrained vectors.
    """
    place = folder / cell.data
    if cell.encoder == "vectors":
        place = state / "vectors" / cell.data
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            vectors.write(folder / cell.data, place)
    read = read_data(replace(_base(cell), data=DataConfig(folder=str(place))), Storage("."))
    if is_final and cell.is_of_histories:
        read.queries["train"] = read.queries["valid"]
    return read


def config_of(cell: Cell, settings: Settings, read: DataSet, epochs: float, batch_size: int) -> RunConfig:
    """The run of a cell."""
    num_pairs = len(read.queries["train"]) if cell.is_of_histories else len(read.queries["train"].relevant.rows)
    config = _base(cell).with_family(**_parts(cell, settings))
    training = replace(
        config.training,
        batch_size=batch_size,
        num_steps=max(int(epochs * num_pairs / batch_size), 1),
        learning_rate=settings.learning_rate,
        max_gradient_norm=settings.max_gradient_norm,
    )
    return for_data(replace(config, seed=cell.seed, training=training), read)


def mixture(cell: Cell, settings: Settings) -> MixtureOfLogitsConfig:
    """8 x 4 for histories (the paper's), 4 x 4 for texts and vectors. w has 32 hidden units where the paper's has 128,
    and keeps all logits, which together saves a third of a step on a CPU."""
    num = (8, 4) if cell.is_of_histories else (4, 4)
    return MixtureOfLogitsConfig(
        num_query_components=num[0],
        num_item_components=num[1],
        temperature=settings.temperature,
        gate_hidden=32,
        logit_dropout=0.0,
        gate_dropout=settings.gate_dropout,
        gate_inputs=("query", "item", "logits") if cell.gates == "all" else ("query", "item"),
        gate_activation=cell.activation,
    )


def _base(cell: Cell) -> RunConfig:
    encoders: dict[str, Any] = {
        "sasrec": lambda: SasrecConfig(width=50, max_length=HISTORIES[cell.data]),
        "esasrec": lambda: SasrecConfig(width=50, max_length=HISTORIES[cell.data], layers="ligr"),
        "hstu": lambda: HstuConfig(width=50, num_blocks=8, num_heads=2, max_length=HISTORIES[cell.data]),
        "towers": lambda: TwoTowerConfig(width=128, hidden=256, num_buckets=2**18),
        "transformer": TransformerConfig,
        "vectors": VectorsConfig,
    }
    if cell.encoder not in encoders:
        raise ValueError(f"encoder must be one of {', '.join(encoders)}, got {cell.encoder!r}")
    family = DualEncoderConfig(
        encoder=encoders[cell.encoder](), loss=ContrastiveConfig(kind="sampled_softmax", pointwise_weight=0.0)
    )
    return RunConfig(name=cell.name, family=family, training=TrainingConfig(weight_decay=0.0))


def _parts(cell: Cell, settings: Settings) -> dict[str, Any]:
    """The parts of the family that differ between cells and trials."""
    own: Any = _base(cell).family
    encoder = own.encoder
    if cell.is_of_histories:
        encoder = replace(encoder, dropout=settings.dropout, num_users=NUM_USERS if cell.user else 0)
        negatives: Any = UniformNegatives(num_items=settings.num_negatives, shared_by="history")
    else:
        negatives = CrossDeviceNegatives()
    similarity: Any = DotProductConfig(temperature=settings.temperature)
    width = settings.width
    if cell.similarity != "dot":
        similarity = mixture(cell, settings)
    components = ComponentsConfig(width=width, query_hidden=0)
    if cell.encoder == "transformer" and cell.similarity == "mol":
        encoder = replace(encoder, pooling="aggregation")
    if cell.similarity == "wide":
        as_many = DualEncoderConfig(similarity=similarity, components=components).numbers_of_item
        similarity, components = DotProductConfig(temperature=settings.temperature), replace(components, width=as_many)
    return {"encoder": encoder, "similarity": similarity, "components": components, "negatives": negatives}


def settings_of(trial: Any, cell: Cell) -> Settings:
    """What a trial of optuna tries; as many choices for each similarity. Dropout stays the paper's: short trials would
    choose less than long trainings need. More than 128 negatives help all similarities, and cost the mixture hours."""
    widths = WIDTHS if cell.similarity == "dot" else (32, 64, 128)
    return Settings(
        width=trial.suggest_categorical("width", list(widths)),
        temperature=trial.suggest_float("temperature", 0.02, 0.1, log=True),
        learning_rate=trial.suggest_float("learning_rate", 5e-4, 4e-3, log=True),
        num_negatives=trial.suggest_categorical("num_negatives", [64, 128]) if cell.is_of_histories else 128,
        gate_dropout=trial.suggest_categorical("gate_dropout", [0.2, 0.5]) if cell.tries_gate_dropout else 0.2,
    )


def to_row(cell: Cell, settings: Settings) -> dict[str, Any]:
    """Both, as a row has them."""
    return {**asdict(cell), "settings": asdict(settings)}
