"""A model of sentence-transformers: its folder, or its name in the local cache of Hugging Face; prompts and digest."""

import hashlib
import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from rails_ray.modules.encoders import model_folder
from rails_ray.optional import optional
from rails_ray.paths import expanded

OF_MODEL = "auto"  # for a prompt: the one that the model brings
PROMPTS = {"queries": ("query",), "items": ("document", "passage", "corpus")}  # by which models name them

Side = Literal["queries", "items"]
Encode = Callable[[Sequence[str]], Any]


def sentence_transformer(folder: str, truncate_dim: int = 0) -> Any:
    """The model of a folder; raises what `FrozenTextConfig.load` does."""
    digest_of(folder)  # raises if there is no such folder
    model_folder.check(expanded(folder), f"encoder.pretrained {folder}")
    module = optional(
        "sentence_transformers",
        needed_by="encoder.kind sentence_transformer",
        package="sentence-transformers",
        install="'rails-ray[sentence-transformers]'",
    )
    try:
        model = module.SentenceTransformer(
            folder,
            local_files_only=True,
            trust_remote_code=False,
            model_kwargs={"use_safetensors": True},
            truncate_dim=truncate_dim or None,
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"encoder.pretrained {folder} must hold a model of sentence-transformers, got: {reason}"
        ) from None
    return model.eval()


def encode_of(model: Any, side: Side, prompt: str | None) -> Encode:
    """Read the texts of a side after a prompt; without one as runs of before did."""
    how: dict[str, Any] = {"convert_to_numpy": True, "show_progress_bar": False}
    encode = model.encode
    if prompt is not None:
        how["prompt"] = prompt_of(model, side, prompt) if prompt == OF_MODEL else prompt
        # sentence-transformers has these since version 5
        encode = getattr(model, "encode_query" if side == "queries" else "encode_document", encode)
    return lambda texts: encode(list(texts), **how)


def prompt_of(model: Any, side: Side, given: str | None) -> str | None:
    """The text of a prompt that is given by itself, by its name, or left to the model.

    Raises:
        ValueError: if it is a name, and the model has no such prompt.
    """
    prompts: dict[str, str] = model.prompts
    if given == OF_MODEL:
        return next((prompts[name] for name in PROMPTS[side] if prompts.get(name)), "")
    if given is None or not given.isidentifier():
        return given
    if given not in prompts:
        names = ", ".join(sorted(prompts)) or "none"
        name = "query_prompt" if side == "queries" else "item_prompt"
        raise ValueError(
            f"encoder.{name} must be auto, a name of the model's prompts ({names}) or a text of more than a word, got "
            f"{given!r}"
        )
    return prompts[given]


def check_similarity(model: Any, folder: str) -> None:
    """
    Raises:
        ValueError: if a model compares its vectors otherwise than by their directions.
    """
    name = str(model.similarity_fn_name)
    has_one_length = type(list(model.children())[-1]).__name__ == "Normalize" and not model.truncate_dim
    if name == "cosine" or (name in ("dot", "euclidean") and has_one_length):  # the same order at one length
        return
    raise ValueError(
        f"encoder.pretrained {folder} must compare vectors by their directions (cosine, or dot or euclidean of "
        f"normalised vectors), got {name}: train components over it, with a recipe such as text-mol"
    )


def folder_of(name: str) -> str:
    """The folder of a model, absolute. Nothing is fetched.

    Args:
        name: a folder, or a model that the local cache of Hugging Face holds, as `sentence-transformers/LaBSE`.

    Raises:
        ValueError: if it is neither.
    """
    # An empty name must not become the folder that the process runs in.
    if name and expanded(name).is_dir():
        return str(expanded(name).resolve())
    for model in [name] if "/" in name else [name, f"sentence-transformers/{name}"]:
        try:
            return str(importlib.import_module("huggingface_hub").snapshot_download(model, local_files_only=True))
        except (ImportError, OSError, ValueError):
            continue
    raise ValueError(
        "encoder.pretrained must be the folder of a model, or the name of one in the local cache of Hugging Face, got "
        f"{name!r}"
    )


def digest_of(folder: str) -> str:
    """The sha256 of all files of a model.

    Raises:
        ValueError: if there is no such folder.
    """
    root = expanded(folder)
    if not folder or not root.is_dir():
        raise ValueError(f"encoder.pretrained must be the folder of a model, got {folder!r}")
    return digest_of_files(str(root))


def digest_of_files(folder: str) -> str:
    """The sha256 of all files of a local folder."""
    root = Path(folder)
    digest = hashlib.sha256()
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(root)}|{path.stat().st_size}|".encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
