"""A heavy ranker from Hugging Face: a cross-encoder that `transformers` saved in a folder.

A pair's score is the first number of the model's answer, as cross-encoders for reranking have it. Weights are read from
safetensors alone, and no code of the folder is run: see `rails_ray.modules.encoders.model_folder`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import torch

from rails_ray.modules.encoders import model_folder
from rails_ray.optional import optional
from rails_ray.reranking.rankers import TEXT, Candidate

AT_ONCE = 64  # pairs of one pass
LENGTH = 512  # most tokens of a pair


class TransformersRanker:
    """The contract of `HeavyRanker`.

    Args:
        folder: a model for sequence classification and its tokenizer.
        device: where the model goes; by default a GPU if there is one.

    Raises:
        UnsupportedError: if `transformers` is not installed.
        ValueError: if the folder holds no such model, or needs code of its own.
    """

    def __init__(self, folder: str, device: str | None = None) -> None:
        transformers = optional("transformers", needed_by="this ranker", package="transformers", install="transformers")
        if not Path(folder).is_dir():
            raise ValueError(f"a ranker's folder must hold a model of transformers, got {folder!r}, which is none")
        model_folder.check(Path(folder), folder)
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        how = {"local_files_only": True, "trust_remote_code": False}
        try:
            self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **how)
            kind = transformers.AutoModelForSequenceClassification
            model = kind.from_pretrained(folder, use_safetensors=True, **how)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError) as error:
            reason = str(error).partition("\n")[0]
            raise ValueError(f"{folder} must hold a model of transformers, got: {reason}") from None
        self.model = model.to(self.device).eval()
        self.reading = Lock()  # a call sets the tokenizer's padding and truncation, and two at once raise
        self.length = min(LENGTH, getattr(model.config, "max_position_embeddings", LENGTH))

    @torch.no_grad()
    def __call__(self, query: Mapping[str, Any], candidates: Sequence[Candidate]) -> list[float]:
        scores = list[float]()
        for first in range(0, len(candidates), AT_ONCE):
            texts = [str(one.fields[TEXT]) for one in candidates[first : first + AT_ONCE]]
            with self.reading:
                read = self.tokenizer(
                    [str(query[TEXT])] * len(texts),
                    texts,
                    padding=True,
                    truncation=True,
                    max_length=self.length,
                    return_tensors="pt",
                )
            scores += self.model(**read.to(self.device)).logits[:, 0].float().tolist()
        return scores
