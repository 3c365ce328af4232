"""A trained run as a heavy ranker: its similarity scores every pair that it is asked for, such as a mixture's.

So RBE can stand before any learned similarity, and a version can be reranked by a better model than it was made with.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

from rails_ray.allowed_code import OURS_ALONE, AllowedCode
from rails_ray.data.dataset import Texts
from rails_ray.data.encoding import encode_items
from rails_ray.families.config import from_json
from rails_ray.families.registry import served_family
from rails_ray.modules.model import Model
from rails_ray.modules.similarities.states import AnyItems, AnyQuery, concatenate, take
from rails_ray.reranking.rankers import TEXT, Candidate
from rails_ray.storage import runs
from rails_ray.storage.filesystem import Storage

MOST_KEPT = 2**16  # items whose states are kept, and queries likewise


class RunRanker:
    """The contract of `HeavyRanker`, of a run whose queries and items are texts.

    Args:
        folder: the run's: STORAGE/runs/NAME.
        device: where the model goes; by default a GPU if there is one.
        allowed: code that the run's config may name.

    Raises:
        NotFoundError: if there is no such run.
        ValueError: if it is none of texts, or names code that is not allowed.
    """

    opens_runs = True  # `ranker_of` passes on what it allows

    def __init__(self, folder: str, device: str | None = None, allowed: AllowedCode = OURS_ALONE) -> None:
        root, separator, name = folder.rstrip("/").rpartition("/runs/")
        if not separator:
            raise ValueError(f"a ranker's folder must be STORAGE/runs/NAME, got {folder!r}")
        store = Storage(root)
        found = runs.read(store, name)
        own = served_family(from_json(found.config), allowed.read_by(f"run {name}", str(store)))
        if not own.encodes_inputs or set(own.form.fields) != {TEXT} or own.has_a_row_for_each_item:
            raise ValueError(f"a run that ranks must be one of texts, got run {name!r} of {own.config.name}")
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.model: Model = own.trained_model(runs.weights(store, found)).to(self.device)
        if own.supports(self.model):
            raise ValueError(f"a run that ranks must need no ranker itself, got run {name!r} of {own.config.name}")
        self.items: dict[str, AnyItems] = {}  # by text
        self._query = lru_cache(maxsize=MOST_KEPT)(self._encoded)

    @torch.no_grad()
    def __call__(self, query: Mapping[str, Any], candidates: Sequence[Candidate]) -> list[float]:
        texts = [str(one.fields[TEXT]) for one in candidates]
        states = self._encode(texts)
        items = concatenate([states[text] for text in texts])
        scores: list[float] = self.model.similarity.scores(self._query(str(query[TEXT])), items)[0].tolist()
        return scores

    def _encoded(self, text: str) -> AnyQuery:
        features = self.model.query_features(Texts([text])).to(self.device)
        return self.model.encode_queries(features)

    def _encode(self, texts: Sequence[str]) -> dict[str, AnyItems]:
        """The states of texts; those that were not seen before are encoded. Threads may share it: each has a dict
        of its own, and two of them may encode the same."""
        found = {text: state for text in texts if (state := self.items.get(text)) is not None}
        new = list(dict.fromkeys(text for text in texts if text not in found))
        if new:
            encoded = encode_items(self.model, self.model.item_features(Texts(new)))
            found |= {text: take(encoded, [row]) for row, text in enumerate(new)}
            self.items = found if len(self.items) > MOST_KEPT else {**self.items, **found}
        return found
