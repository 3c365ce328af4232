"""The tree of small configs that describes one run; its JSON lies beside every artefact of the run.

Each member of a union carries its `kind`, by which it is read back.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, get_args, get_type_hints

import tyro
from pydantic import Field, TypeAdapter, ValidationError

from rails_ray.config.bm25 import Bm25Config
from rails_ray.config.dual_encoder import DualEncoderConfig
from rails_ray.config.solar import SolarConfig
from rails_ray.training.loop import TrainingConfig

FamilyConfig = DualEncoderConfig | SolarConfig | Bm25Config


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where queries and items come from.

    Args:
        folder: a local one or s3://bucket/prefix, with the tables that `rails_ray.data.forms` describes for the kind of
            queries that the run's encoder reads; by default the packaged emoji.
        num_valid: held-out queries of the emoji for validation; a folder's tables name their own.
        num_test: held-out queries of the emoji for the last measurement.
        split_seed: seed of the emoji's split.
    """

    folder: str | None = None
    num_valid: int = 2000
    num_test: int = 2000
    split_seed: int = 0

    def __post_init__(self) -> None:
        for name in ("num_valid", "num_test"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """All that decides what a run computes.

    Args:
        name: of the recipe; runs are called by it and the time.
        seed: of initial weights, batches and dropout.
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
        """The same with other fields of its family."""
        return dataclasses.replace(self, family=dataclasses.replace(self.family, **fields))

    def with_kinds(self, kinds: Mapping[str, str]) -> "RunConfig":
        """The same with other members of its family's unions. A member of another kind begins with its defaults.

        Args:
            kinds: by the name of the union's field.

        Raises:
            ValueError: if a field is no union of the family, or has no such kind.
        """
        changed = {}
        for name, kind in kinds.items():
            members = _members(type(self.family), name)
            if kind not in members:
                raise ValueError(f"{name}.kind must be one of {', '.join(members) or 'none'}, got {kind!r}")
            if not isinstance(getattr(self.family, name), members[kind]):
                changed[name] = members[kind](kind=kind)
        return self.with_family(**changed)


def _members(family: type, name: str) -> dict[str, Any]:
    """The members of a family's union by their kinds; none where the field is no union."""
    hint = get_type_hints(family).get(name)
    found = [member for member in get_args(hint) or (hint,) if dataclasses.is_dataclass(member)]
    hints = [(member, get_type_hints(member).get("kind")) for member in found]
    return {kind: member for member, literal in hints for kind in get_args(literal)}


CODEC = TypeAdapter(RunConfig)


def to_json(config: RunConfig) -> bytes:
    return CODEC.dump_json(config, indent=1)


def from_json(data: bytes) -> RunConfig:
    """Raises:
    ValueError: if a field is unknown or out of range.
    """
    try:
        return CODEC.validate_json(data, strict=True, extra="forbid")
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"a run's config must have the fields of RunConfig, got: {where}: {first['msg']}") from None
