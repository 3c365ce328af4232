"""The ways in which recipes read a data set, and which of them its columns allow.

| reading         | tables                                                  |
|-----------------|---------------------------------------------------------|
| `text`          | items with texts, queries that are texts, relevance     |
| `vector`        | items, queries that are vectors, relevance              |
| `vectors`       | the same, and the items are vectors too                 |
| `named_vectors` | the same, several vectors of each by name               |
| `features`      | items, queries that are features with values, relevance |
| `history`       | items, interactions; users, if there is such a table    |

`COLUMNS` says what the forms in `rails_ray.data.forms` read of each table; a test holds it to what they refuse.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rails_ray.cli.inspecting.tables import Survey
from rails_ray.data.forms import FORMS, QueryForm
from rails_ray.families.recipes import by_name, names
from rails_ray.families.training_family import training_family
from rails_ray.storage.values import (
    FILLED_TEXT,
    FILLED_VECTOR,
    ID,
    INTEGER,
    INTEGERS,
    NUMBERS,
    REFERENCE,
    TEXT,
    TIME,
    VECTOR,
    Columns,
)

RELEVANCE = {"query_id": REFERENCE, "item_id": REFERENCE}
COLUMNS: Mapping[str, Mapping[str, Columns]] = {
    "text": {
        "items": {"item_id": ID, "text": FILLED_TEXT},
        "queries": {"query_id": ID, "text": FILLED_TEXT, "split": TEXT},
        "relevance": RELEVANCE,
    },
    "vector": {
        "items": {"item_id": ID},
        "queries": {"query_id": ID, "split": TEXT, "vector": NUMBERS},
        "relevance": RELEVANCE,
    },
    "features": {
        "items": {"item_id": ID},
        "queries": {"query_id": ID, "split": TEXT, "feature_indices": INTEGERS, "feature_values": NUMBERS},
        "relevance": RELEVANCE,
    },
    "history": {
        "items": {"item_id": ID},
        "interactions": {"user_id": REFERENCE, "item_id": REFERENCE, "position": INTEGER},
    },
}
OPTIONAL: Mapping[str, Mapping[str, Columns]] = {
    "text": {"items": {"title": FILLED_TEXT}},
    "vector": {"items": {"title": FILLED_TEXT, "text": FILLED_TEXT}},
    "features": {"items": {"title": FILLED_TEXT, "text": FILLED_TEXT}},
    "history": {"items": {"title": FILLED_TEXT}, "interactions": {"timestamp": TIME}},
}
INSTEAD = {"position": ("timestamp", TIME)}  # a column that does as well
USERS = {"user_id": ID}  # of a table that may be left out


@dataclass(frozen=True)
class Reading:
    """
    form_name: the name of the form in `FORMS`.
    form: what reads it.
    item_columns: columns with vectors of items.
    query_columns: columns with vectors of queries, where the form has several of each.
    recipes: the recipes that read so.
    untrained: those of them that train nothing, and can do with items alone.
    """

    name: str
    form_name: str
    form: QueryForm
    item_columns: tuple[str, ...]
    recipes: tuple[str, ...]
    untrained: tuple[str, ...]
    query_columns: tuple[str, ...] = ()

    @property
    def columns(self) -> dict[str, Columns]:
        """The columns that it needs, by table."""
        if self.query_columns:
            return {
                "items": {"item_id": ID, **dict.fromkeys(self.item_columns, FILLED_VECTOR)},
                "queries": {"query_id": ID, "split": TEXT, **dict.fromkeys(self.query_columns, NUMBERS)},
                "relevance": RELEVANCE,
            }
        needed = dict(COLUMNS[self.form_name])
        return needed | {"items": {**needed["items"], **dict.fromkeys(self.item_columns, VECTOR)}}

    @property
    def optional(self) -> dict[str, Columns]:
        """The columns that it may read, by table."""
        if self.query_columns:
            texts = {name: FILLED_TEXT for name in ("title", "text") if name not in self.item_columns}
            return {"items": texts}
        return dict(OPTIONAL[self.form_name])

    def lacks(self, there: Mapping[str, Survey]) -> list[str]:
        """The tables and columns that are not there, such as `relevance` and `queries.split`."""
        missing = []
        for table, columns in self.columns.items():
            if table not in there:
                missing.append(table)
            else:
                names = ((column, INSTEAD.get(column, (column,))[0]) for column in columns)
                found = there[table]
                missing += [f"{table}.{name}" for name, other in names if not (found.has(name) or found.has(other))]
        return missing

    def can_do_with_items(self, lacks: Sequence[str]) -> bool:
        """Return whether a recipe reads data that lack so much: every table but the items."""
        return bool(self.untrained) and set(lacks) == self.columns.keys() - {"items"}


def readings() -> list[Reading]:
    """The readings of all recipes; one that reads more than another comes before it."""
    recipes = dict[tuple[str, tuple[str, ...]], list[str]]()
    forms = dict[tuple[str, tuple[str, ...]], QueryForm]()
    for recipe in names():
        form = training_family(by_name(recipe)).form
        form_name = next(name for name, other in FORMS.items() if other.fields == form.fields)
        read = form_name, getattr(form, "item_columns", ())  # only vectors have some
        recipes.setdefault(read, []).append(recipe)
        forms.setdefault(read, form)  # of texts with scores and without: those without, which need less
    found = []
    for (form_name, item_columns), own in recipes.items():
        form = forms[form_name, item_columns]
        query_columns = getattr(form, "query_columns", ())
        name = f"{form_name}s" if item_columns and not query_columns else form_name
        untrained = tuple(recipe for recipe in own if not training_family(by_name(recipe)).trains)
        found.append(Reading(name, form_name, form, item_columns, tuple(own), untrained, query_columns))
    return sorted(found, key=lambda reading: -len(reading.item_columns))
