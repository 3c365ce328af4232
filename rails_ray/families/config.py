"""The tree of small configs that describes one run; its JSON lies beside every artefact of the run.

Each member of a union carries its `kind`, by which it is read back.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, get_args, get_type_hints

import tyro
from pydantic import Field, TypeAdapter, ValidationError

from rails_ray.allowed_code import AllowedCode
from rails_ray.data.sources import COLUMNS, MOST_DROPPED, NAMES
from rails_ray.families.bm25.config import Bm25Config
from rails_ray.families.dual_encoder.config import DualEncoderConfig
from rails_ray.families.rbe.config import RbeConfig
from rails_ray.families.solar.config import SolarConfig
from rails_ray.modules.encoders.frozen import FunctionConfig, SentenceTransformerConfig
from rails_ray.modules.encoders.histories import HistoryConfig
from rails_ray.modules.encoders.text import TransformerConfig
from rails_ray.modules.encoders.two_tower import TwoTowerConfig
from rails_ray.modules.encoders.words import FORMER
from rails_ray.modules.schedule import TrainingConfig
from rails_ray.schema.ranker import RankerConfig
from rails_ray.storage.attributes import check_names

FamilyConfig = DualEncoderConfig | SolarConfig | Bm25Config | RbeConfig


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where queries and items come from.

    Args:
        folder: folder of the tables, local or s3://bucket/prefix; by default the packaged emoji. `rails_ray.data.forms`
            has the tables for each form of query. Each is a file NAME.parquet, or a folder NAME of Parquet files.
        items: file, folder or pattern (* and ?) of the items, if they are not in the folder.
        queries: likewise of the queries.
        relevance: likewise of the relevance.
        interactions: likewise of the interactions.
        columns: columns that are read in place of others, each NAME=COLUMN or TABLE.NAME=COLUMN, such as
            item_id=ITEM_ID or queries.text=question; several may be joined by commas.
        attributes: further columns of the items to store, which filters may name, each NAME or NAME=COLUMN, such as
            price or heft=weight_kg; several may be joined by commas.
        max_dropped: share of the rows of a table, and of each of its files of 100 rows or more, that may name items,
            queries or users that are not there: such rows are left out and counted; above it the data are refused.
        zero_vectors: handling of vectors of zeros, which have no cosine: `refuse` the data, or `keep` such vectors and
            find their items last. None, in runs of earlier releases only: kept, with a cosine of 0.
        exclude_seen: keep the items of a query's history out of its answer, in validation, evaluation, tuning,
            calibration, and for requests to a server that do not choose. None: no choice was made; they are kept out.
        num_valid: emoji queries held out for validation; a folder's tables name their own.
        num_test: emoji queries held out for the test; a folder's tables name their own.
        split_seed: seeds the split of the emoji queries.
    """

    folder: str | None = None
    items: str | None = None
    queries: str | None = None
    relevance: str | None = None
    interactions: str | None = None
    columns: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    max_dropped: float = MOST_DROPPED
    zero_vectors: Literal["refuse", "keep"] | None = "refuse"
    exclude_seen: bool | None = None
    num_valid: int = 2000
    num_test: int = 2000
    split_seed: int = 0

    def __post_init__(self) -> None:
        for name in ("num_valid", "num_test"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.max_dropped <= 1:
            raise ValueError(f"max_dropped must be from 0 to 1, got {self.max_dropped}")
        _ = self.renamed, self.attribute_columns  # raise

    def over(self, former: "DataConfig") -> "DataConfig":
        """These data in place of former ones: a folder takes the place of all tables, single tables of what they name.
        A choice about attributes, seen items or vectors of zeros holds until another is made."""
        places: dict[str, Any] = self.places
        chosen = former.exclude_seen if self.exclude_seen is None else self.exclude_seen
        return replace(
            self if self.folder is not None else replace(former, **places),
            exclude_seen=chosen,
            columns=self.columns or former.columns,
            attributes=self.attributes or former.attributes,
            max_dropped=former.max_dropped if self.max_dropped == MOST_DROPPED else self.max_dropped,
            zero_vectors=former.zero_vectors if self.zero_vectors == "refuse" else self.zero_vectors,
        )

    @property
    def excludes_seen(self) -> bool:
        """The choice, or True without one: answers pass over the items of their query's history."""
        return self.exclude_seen is not False

    @property
    def renamed(self) -> dict[str, str]:
        """The columns that are read in place of others, by the name of that column.

        Raises:
            ValueError: if one is not written as NAME=COLUMN, or nothing is called so.
        """
        found = {}
        for pair in ",".join(self.columns).split(",") if self.columns else ():
            name, separator, column = pair.partition("=")
            table, _, last = name.rpartition(".")
            if not separator or not column or last not in COLUMNS or table not in ("", *NAMES):
                raise ValueError(
                    f"--data.columns must be NAME=COLUMN or TABLE.NAME=COLUMN with a NAME of {', '.join(COLUMNS)}, got "
                    f"{pair!r}"
                )
            found[name] = column
        return found

    @property
    def attribute_columns(self) -> dict[str, str]:
        """The column that each attribute is read from, by the name of the attribute.

        Raises:
            ValueError: if one is not written as NAME or NAME=COLUMN, or an attribute cannot be called so.
        """
        pairs = [pair.partition("=") for pair in ",".join(self.attributes).split(",")] if self.attributes else []
        for name, separator, column in pairs:
            if not name or bool(separator) != bool(column):
                raise ValueError(f"--data.attributes must be NAME or NAME=COLUMN, got {name + separator!r}")
        check_names(name for name, _, _ in pairs)
        return {name: column or name for name, _, column in pairs}

    @property
    def places(self) -> dict[str, str]:
        """The tables that are not in the folder, by name."""
        named = {name: getattr(self, name) for name in PLACED}
        return {name: place for name, place in named.items() if place is not None}


PLACED = ("items", "queries", "relevance", "interactions")  # tables that can have a place of their own


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that decides what a run computes.

    Args:
        name: name of the recipe; by default a run is called by it and the time.
        seed: seeds initial weights, batches and dropout.
        family: what is trained, and how its items are found.
    """

    name: str
    seed: int = 0
    data: DataConfig = field(default_factory=DataConfig)
    family: Annotated[FamilyConfig, Field(discriminator="kind"), tyro.conf.arg(name="")] = field(
        default_factory=DualEncoderConfig
    )
    training: TrainingConfig = field(default_factory=TrainingConfig)

    def with_family(self, **fields: Any) -> "RunConfig":
        """A copy with these fields of its family."""
        return dataclasses.replace(self, family=dataclasses.replace(self.family, **fields))

    def with_width(self, width: int) -> "RunConfig":
        """A copy whose family makes components of a width. Where its encoder of histories makes them, that gets the
        width.

        Raises:
            ValueError: if it makes none, or the width is below 1.
        """
        components, encoder = (getattr(self.family, name, None) for name in ("components", "encoder"))
        if isinstance(encoder, HistoryConfig) and components is not None and components.items == "given":
            return self.with_family(
                encoder=dataclasses.replace(encoder, width=width),
                components=dataclasses.replace(components, width=width),
            )
        if components is None or components.items == "given":
            raise ValueError(f"width must be left out for {self.name}, which makes no components, got {width}")
        return self.with_family(components=dataclasses.replace(components, width=width))

    def with_kinds(self, kinds: Mapping[str, str]) -> "RunConfig":
        """A copy with other members of its family's unions. A member of another kind begins with its defaults.

        Args:
            kinds: the kind that each union gets, by the name of its field, or by the dotted names of fields down to it.

        Raises:
            ValueError: if a field is no union of the family, or has no such kind.
        """
        return dataclasses.replace(self, family=_with_kinds(self.family, kinds))


def _with_kinds(config: Any, kinds: Mapping[str, str], where: str = "") -> Any:
    changed, below = dict[str, Any](), dict[str, dict[str, str]]()
    for path, kind in kinds.items():
        name, _, rest = path.partition(".")
        members = _members(type(config), name)
        if rest:
            below.setdefault(name, {})[rest] = kind
        elif kind not in members:
            raise ValueError(f"{where}{name}.kind must be one of {', '.join(members) or 'none'}, got {kind!r}")
        elif not isinstance(getattr(config, name), members[kind]):
            changed[name] = members[kind](kind=kind)
    for name, own in below.items():
        part = changed.get(name, getattr(config, name, None))
        changed[name] = _with_kinds(part, own, f"{where}{name}.")
    return dataclasses.replace(config, **changed)


def _members(config: type, name: str) -> dict[str, Any]:
    """The members of a union by their kinds; none if the field is no union."""
    hint = get_type_hints(config).get(name) if dataclasses.is_dataclass(config) else None
    found = [member for member in get_args(hint) or (hint,) if dataclasses.is_dataclass(member)]
    hints = [(member, get_type_hints(member).get("kind")) for member in found]
    return {kind: member for member, literal in hints for kind in get_args(literal)}


def import_paths(config: Any) -> list[str]:
    """The import paths of code that a config names, in its fields and theirs."""
    if isinstance(config, FunctionConfig | RankerConfig):
        path = config.path if isinstance(config, RankerConfig) else config.function
        return [path] if path else []
    if not dataclasses.is_dataclass(config):
        return []
    return [path for part in dataclasses.fields(config) for path in import_paths(getattr(config, part.name))]


def allowed_here(config: RunConfig, allow_code: Sequence[str] = ()) -> AllowedCode:
    """Allow the code that a config names if the config was written here, not read from storage.

    Raises:
        ValueError: as `AllowedCode.given`.
    """
    return AllowedCode.given(allow_code).also(*import_paths(config)).read_by(f"the config of {config.name}")


CODEC = TypeAdapter(RunConfig)


def checked(config: RunConfig) -> RunConfig:
    """The config, each of whose fields has a value of its type: Python takes any.

    Raises:
        ValueError: if one has not.
    """
    return from_json(CODEC.dump_json(config, warnings=False))


def to_json(config: RunConfig) -> bytes:
    return CODEC.dump_json(config, indent=1)


def from_json(data: bytes) -> RunConfig:
    """Read a stored config. A field that it was stored without means what runs did then.

    Raises:
        ValueError: if a field is unknown or out of range.
    """
    try:
        return CODEC.validate_json(_with_former(data), strict=True, extra="forbid")
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"a run's config must have the fields of RunConfig, got: {where}: {first['msg']}") from None


def _with_former(data: bytes) -> bytes:
    """A stored config, with what has another default now."""
    try:
        stored = json.loads(data)
        stored["data"].setdefault("zero_vectors", None)
        family = stored["family"]
        below = [family[name] for name in ("encoder", "features") if name in family]
        kinds = [(family["kind"], family), *((part.get("kind", CHUNKS), part) for part in below)]
        for kind, part in kinds:
            part.update({name: value for name, value in FORMERLY.get(kind, {}).items() if name not in part})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return data  # the codec says what is wrong with it
    return json.dumps(stored).encode()


CHUNKS = "chunks"  # SOLAR's encoder, which has no kind
_WORDS: dict[str, Any] = {"words": FORMER}
FORMERLY: dict[str, dict[str, Any]] = {
    **dict.fromkeys((Bm25Config.kind, TwoTowerConfig.kind, TransformerConfig.kind, CHUNKS), _WORDS),
    SentenceTransformerConfig.kind: {"query_prompt": None, "item_prompt": None},
}
