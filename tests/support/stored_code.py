"""Versions whose stored config names code, by somebody who can write to the storage: all checksums are right."""

import dataclasses
import hashlib
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

from rails_ray.allowed_code import AllowedCode
from rails_ray.families.config import DataConfig, RunConfig, from_json, to_json
from rails_ray.families.data import for_data, read_data
from rails_ray.families.training_family import training_family
from rails_ray.modules import weight_files
from rails_ray.modules.encoders.frozen import FunctionConfig
from rails_ray.schema.ranker import RankerConfig
from rails_ray.storage import manifest, parts, runs, versions
from rails_ray.storage.described import WEIGHTS, Encoded
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.parquet import item_part
from support.data_folders import write_text_data
from support.examples import small_config
from support.published_rbe import write_rbe_run
from support.ranked import write_scored_data

SUPPORT = AllowedCode(("support",))
OF_TEXTS = FunctionConfig(function="support.text_vectors:encode")
NOT_TOLD = "code that this process is not allowed to run"
MINE = """
import pathlib
from functools import partial
from subprocess import Popen, getoutput

from rails_ray.reranking.rankers.cross_encoder import CrossEncoderRanker
from rails_ray.storage.filesystem import Storage
from support.ranked import by_pairs as borrowed

pathlib.Path(__file__).with_name("imported").touch()


def rank(query, candidates):
    return [float(len(candidate.fields["text"])) for candidate in candidates]


class Ranker:
    def __init__(self, folder=""):
        self.folder = folder

    def __call__(self, query, candidates):
        return rank(query, candidates)


def with_more(more, query, candidates):
    return rank(query, candidates)


halved, hidden, instance = partial(with_more, 2), partial(getoutput), Ranker()
bound = instance.__call__
"""


def publish_with_ranker(root: Path, ranker: RankerConfig) -> None:
    """A version of RBE, trained in this process, that names this ranker."""
    storage = Storage(str(root))
    write_rbe_run(root, write_scored_data(root.parent / f"{root.name}-data"), "r")
    found = runs.read(storage, "r")
    config = from_json(found.config)
    model = training_family(config, SUPPORT).trained_model(runs.weights(storage, found))
    [(_, weights)] = runs.weights(storage, found)
    _publish(storage, config, config.with_family(ranker=ranker), model, weights)


def publish_with_encoder(root: Path, function: str) -> None:
    """A version of an untrained dual encoder that names this function."""
    storage = Storage(str(root))
    data = DataConfig(folder=str(write_text_data(root.parent / f"{root.name}-data")))
    config = replace(small_config("dot product"), data=data).with_family(encoder=OF_TEXTS)
    config = for_data(config, read_data(config, storage), SUPPORT)
    model = training_family(config, SUPPORT).model()
    own: Any = config.family
    named = config.with_family(encoder=replace(own.encoder, function=function))
    _publish(storage, config, named, model, weight_files.to_bytes(model))


def _publish(storage: Storage, config: RunConfig, named: RunConfig, model: Any, weights: bytes) -> None:
    """Encode by one config, and store another; also as run `named`."""
    read = read_data(config, storage)
    with torch.no_grad():
        items = training_family(config, SUPPORT).run_items(storage, "r", model.eval(), read)
    [part] = parts.plan([len(items)], part_items=len(items))
    texts = {"item_id": read.item_ids.column, "text": pa.array(list(read.item_inputs))}
    parts.write_part(storage, "v1", part, item_part(pa.table(texts), items))
    files = {manifest.CONFIG: to_json(named), WEIGHTS: weights}
    encoded = parts.finish(
        storage, "v1", [part], run="named", query={"text": "string"}, files=files.items(), cutoff_mass=None
    )
    versions.publish(storage, encoded, "2026-01-01T00:00:00Z")
    runs.write(
        storage,
        "named",
        weights=weights,
        validation=b'{"cutoff_mass": null}',
        training={"seconds": 0, "losses": []},
        config=to_json(named),
    )


def rename_ranker(root: Path, to: Path, ranker: RankerConfig) -> Path:
    """A copy of the storage of `publish_with_ranker` whose version names another ranker."""
    shutil.copytree(root, to)
    storage, described = Storage(str(to)), versions.read_described(Storage(str(root)), "v1")
    config = to_json(from_json(runs.read(storage, "named").config).with_family(ranker=ranker))
    files = [
        replace(entry, size_bytes=len(config), sha256=hashlib.sha256(config).hexdigest())
        if entry.path == manifest.CONFIG
        else entry
        for entry in described.files
    ]
    storage.write(f"versions/v1/{manifest.CONFIG}", config)
    fields = {field.name: getattr(described, field.name) for field in dataclasses.fields(Encoded)}
    versions.publish(storage, Encoded(**fields | {"files": files}), "2026-01-02T00:00:00Z")
    return to


def write_program(folder: Path) -> tuple[Path, Path]:
    """A program, and the file that it makes when it runs."""
    folder.mkdir(parents=True, exist_ok=True)
    program, made = folder / "program", folder / "it-ran"
    program.write_text(f"#!/bin/sh\ntouch {made}\n")
    program.chmod(0o755)
    return program, made


def was_imported(modules: Path) -> list[str]:
    return sorted(str(path.parent.relative_to(modules)) for path in modules.rglob("imported"))


def renamed(root: Path, tmp_path: Path, path: str, folder: str = "") -> Path:
    """A version like that of `of_ranker` that names another ranker."""
    return rename_ranker(root, tmp_path / "renamed", RankerConfig(path=path, folder=folder))
