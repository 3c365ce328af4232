"""Recipes: functions that return the config of a run, each derived from another if possible.

Each takes the arguments of `Recipe`: `text_mol("my-texts", seed=1)`. A recipe's name on the command line is its
function's name with hyphens.
"""

from rails_ray.families.config import RunConfig
from rails_ray.families.recipes.baselines import baseline_bm25
from rails_ray.families.recipes.emoji import emoji_dot, emoji_mol
from rails_ray.families.recipes.histories import esasrec, esasrec_mol, hstu, hstu_mol, sasrec, sasrec_mol
from rails_ray.families.recipes.ml1m import (
    ml1m_hstu,
    ml1m_hstu_long,
    ml1m_hstu_mol,
    ml1m_hstu_mol_long,
    ml1m_sasrec,
    ml1m_sasrec_long,
    ml1m_sasrec_mol,
    ml1m_sasrec_mol_long,
)
from rails_ray.families.recipes.rbe import text_rbe
from rails_ray.families.recipes.recipe import Recipe
from rails_ray.families.recipes.solar import features_solar, text_solar, vector_solar
from rails_ray.families.recipes.text import (
    text_dot,
    text_dot_glas,
    text_mol,
    text_mopq,
    text_transformer_dot,
    text_transformer_mol,
)
from rails_ray.families.recipes.vectors import vector_cosine, vector_dot, vector_mol, vector_mopq, vectors_gated

__all__ = [  # noqa: RUF022, as recipes are listed in this order
    "by_name",
    "names",
    "emoji_mol",
    "emoji_dot",
    "text_mol",
    "text_dot",
    "text_transformer_mol",
    "text_transformer_dot",
    "text_dot_glas",
    "text_mopq",
    "sasrec",
    "sasrec_mol",
    "esasrec",
    "esasrec_mol",
    "hstu",
    "hstu_mol",
    "ml1m_sasrec",
    "ml1m_sasrec_mol",
    "ml1m_sasrec_long",
    "ml1m_sasrec_mol_long",
    "ml1m_hstu",
    "ml1m_hstu_mol",
    "ml1m_hstu_long",
    "ml1m_hstu_mol_long",
    "text_solar",
    "features_solar",
    "vector_solar",
    "vector_mol",
    "vector_dot",
    "vector_cosine",
    "vector_mopq",
    "vectors_gated",
    "baseline_bm25",
    "text_rbe",
]
RECIPES: tuple[Recipe, ...] = tuple(own for own in map(globals().get, __all__) if isinstance(own, Recipe))
FOR_PACKAGED = ("emoji-mol", "emoji-dot")  # recipes that are sized for the data set in the package


def names() -> list[str]:
    """The names of all recipes."""
    return [recipe.__name__.replace("_", "-") for recipe in RECIPES]


def by_name(name: str) -> RunConfig:
    """Raises:
    ValueError: if there is no such recipe.
    """
    named = dict(zip(names(), RECIPES, strict=True))
    if name not in named:
        raise ValueError(f"recipe must be one of {', '.join(named)}, got {name!r}")
    return named[name]()


def __dir__() -> list[str]:
    return __all__
