"""Items that are stored as codes: encoded by the job, the same in one process, searched, measured, refused."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from rails_ray import on_ray
from rails_ray.cli.main import main
from rails_ray.data.encoding import encode_items
from rails_ray.errors import DamagedError
from rails_ray.families.data import read_data
from rails_ray.families.shards import read_part
from rails_ray.families.training_family import training_family
from rails_ray.families.vector_items.quantized import Coded, quantizer_of
from rails_ray.families.vector_items.storing import FullItems, PqItems
from rails_ray.families.version import Version
from rails_ray.modules.quantizers.pq import PqConfig
from rails_ray.modules.quantizers.product import unpack
from rails_ray.modules.quantizers.read_back import shortened
from rails_ray.modules.similarities.states import QuantizedItems
from rails_ray.search.indexes.ivf import IvfConfig
from rails_ray.search.searcher import METHODS
from rails_ray.serving import local
from rails_ray.storage import quantizers, runs
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.parquet import item_state
from support.examples import small_config, write_untrained_run
from support.untrained_runs import of, published, write_runs

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("ray_cluster")]

CODES = PqItems(num_subspaces=3, num_codewords=16)
QUERIES = ["red car", "hat", "blue stone"]
ALL = {"nprobe": 3, "num_candidates": 60, "num_per_embedding": 60}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, ray_cluster: None) -> Path:
    """Storage with untrained runs: a mixture over texts, and a dot product over vectors."""
    folder = tmp_path_factory.mktemp("quantized")
    write_runs(folder)
    return folder


def test_the_job_makes_what_one_process_makes(root: Path) -> None:
    version = published(root, "mixture", "same", items=CODES)
    store, run = Storage(str(root)), runs.read(Storage(str(root)), "mixture")
    config = of(small_config(), root / "texts").with_family(items=CODES)
    own, data = training_family(config), read_data(config, store)
    model = own.trained_model(runs.weights(store, run))
    items = encode_items(model, model.item_features(data.item_inputs))
    quantizer = quantizer_of(CODES, items.components, config.seed)
    expected = Coded(lambda *_: items, CODES, quantizer, None)(data.item_ids, None)
    stored, centroids = quantizers.from_bytes(store.read(f"versions/same/{quantizers.NAME}"))
    assert centroids is None
    assert torch.equal(stored.codebooks, quantizer.codebooks)
    parts = sorted(version.manifest.parts, key=lambda entry: entry.first_row)
    read = [item_state(read_part(store, version.manifest, entry), QuantizedItems) for entry in parts]
    assert torch.equal(torch.cat([part.codes for part in read]), expected.codes)
    assert torch.allclose(torch.cat([part.residuals for part in read]), expected.residuals, atol=1e-6)
    assert all(part.components is None for part in read)
    assert version.manifest.state.shapes == {"codes": [3], "residuals": [2], "gate": [4]}  # 6 codes of half a byte
    back = Version(store, version.manifest).items().state
    read_back = quantizer.decode(torch.cat([unpack(part.codes, 6) for part in read])).unflatten(1, (2, -1))
    assert torch.equal(back.components, shortened(read_back))
    assert ((read_back - items.components).norm(dim=2) - expected.residuals).abs().max() < 1e-5
    assert ((back.components - items.components).norm(dim=2) < expected.residuals + 1e-5).all()


@pytest.mark.parametrize("num_codewords", [16, 20])
def test_every_method_finds_what_a_scan_of_codes_finds(root: Path, num_codewords: int) -> None:
    version = published(
        root, "mixture", f"codes-{num_codewords}", items=replace(CODES, num_codewords=num_codewords, nlist=3)
    )
    best = version.search(QUERIES, 5, cutoff={"top_k": 5}).results
    assert all(result.certificate.is_exact for result in best)
    for method in (*METHODS, "gated", "lookup", "ivf_lookup"):
        found = version.search(QUERIES, 5, method=method, cutoff={"top_k": 5}, **ALL).results
        assert [result.items for result in found] == [result.items for result in best], method
    above = version.search(QUERIES, cutoff={"score": best[0].scores[2]}).results[0]
    assert above.items == best[0].items[:3]
    told = version.explain("red car", best[0].items[:2]).items
    assert [result.score for result in told] == pytest.approx(best[0].scores[:2], abs=1e-5)
    with pytest.raises(
        ValueError, match="method must be one of brute_force, two_pass, per_embedding, average, combined"
    ):
        version.search(QUERIES, method="inverted")


def test_codes_beside_vectors_choose_candidates_that_vectors_score(root: Path) -> None:
    plain = published(root, "dot", "vectors")
    beside = published(
        root, "dot", "beside", items=PqItems(num_subspaces=2, num_codewords=20, has_vectors=True, nlist=3)
    )
    queries = np.random.default_rng(5).standard_normal((20, 7)).tolist()
    best = plain.search(queries, 10, cutoff={"top_k": 10}).results
    assert [one.items for one in beside.search(queries, 10, cutoff={"top_k": 10}).results] == [
        one.items for one in best
    ]
    for method in ("lookup", "ivf_lookup"):
        found = beside.search(queries, 10, method=method, num_candidates=100, nprobe=3, cutoff={"top_k": 10}).results
        shares = [len(set(a.items) & set(b.items)) / 10 for a, b in zip(found, best, strict=True)]
        assert np.mean(shares) > 0.9
        for own, exact in zip(found, best, strict=True):
            assert own.certificate.gap is not None
            if own.certificate.is_exact:
                assert own.items == exact.items
            known = dict(zip(exact.items, exact.scores, strict=True))
            assert all(
                abs(known.get(item, score) - score) < 1e-6 for item, score in zip(own.items, own.scores, strict=True)
            )
    everything = beside.search(queries, 10, method="lookup", num_candidates=400, cutoff={"top_k": 10}).results
    assert all(own.certificate.is_exact for own in everything)


def test_a_version_of_codes_is_evaluated_and_calibrated(root: Path) -> None:
    published(root, "mixture", "measured", items=replace(CODES, quantizer=PqConfig()))
    report = on_ray.evaluate(str(root), version="measured")
    assert 0 <= report.to_dict()["mrr"] <= 1
    on_ray.calibrate(str(root), version="measured")
    version = local.open(str(root), "measured")
    assert version.search(["red car"], cutoff={"coverage": 0.5}).results[0].items


def test_encoding_goes_on_with_the_quantizer_that_is_there(root: Path) -> None:
    first = on_ray.encode(str(root), "mixture", version="again", num_shards=2, part_items=16, stored={"items": CODES})
    store = Storage(str(root))
    before = store.read(f"versions/again/{quantizers.NAME}")
    for name in ("encoded.json", "parts/000000000016.json"):
        store.delete(f"versions/again/{name}")
    second = on_ray.encode(str(root), "mixture", version="again", num_shards=2, part_items=16, stored={"items": CODES})
    assert store.read(f"versions/again/{quantizers.NAME}") == before
    assert second == first


def test_vectors_beside_codes_have_the_type_of_the_run(root: Path) -> None:
    config = of(small_config(), root / "texts")
    half = config.with_family(items=FullItems(dtype="float16"))
    write_untrained_run(Storage(str(root)), "half", half)
    version = published(root, "half", "half-codes", codes=(3, 16), keep_vectors=True)
    assert version.manifest.state.dtypes["components"] == "float16"


def test_a_quantizer_that_is_damaged(root: Path) -> None:
    published(root, "mixture", "damaged", items=CODES)
    store = Storage(str(root))
    store.write(f"versions/damaged/{quantizers.NAME}", b"no quantizer")
    with pytest.raises(DamagedError, match=r"quantizer.safetensors of version damaged must have the sha256"):
        local.open(str(root), "damaged")


@pytest.mark.parametrize(
    ("items", "index", "message"),
    [
        (PqItems(num_subspaces=4), None, "items.num_subspaces must divide the 6 numbers of a component, got 4"),
        (
            PqItems(num_subspaces=3),
            None,
            "as many codewords as there are items, 60, got 256: take fewer codewords, --codes 3x32",
        ),
        (replace(CODES, nlist=61), None, "nlist must be at most the 60 items of the sample, got 61"),
        (CODES, IvfConfig(), "index.kind must be flat in fp32 for items.kind pq, got ivf"),
    ],
)
def test_codes_that_cannot_be(root: Path, items: PqItems, index: IvfConfig | None, message: str) -> None:
    stored = {"items": items} if index is None else {"items": items, "index": index}
    with pytest.raises(ValueError, match=message):
        on_ray.encode(str(root), "mixture", version=f"no-{items.num_subspaces}-{items.nlist}", stored=stored)


def test_the_command(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    storage = ["--storage", str(root)]
    command = [
        "encode",
        "--run",
        "mixture",
        "--version",
        "by-command",
        "--codes",
        "3x16",
        "--code-lists",
        "3",
        *storage,
    ]
    assert main([*command, "--keep-vectors"]) == 0
    told = re.search(r"codes: mean squared error ([\d.e-]+) an item; (\d+) codewords have no", capfd.readouterr().out)
    assert told is not None
    assert 0 < float(told[1]) < 2, "of two components of length 1"
    assert int(told[2]) < 96
    assert main(["publish", "--version", "by-command", *storage]) == 0
    query = ["query", "red car", "--local", "--version", "by-command", "--method", "ivf_lookup", "--nprobe", "3"]
    assert main([*query, *storage]) == 0
    assert "ivf_lookup" in capfd.readouterr().out
    for wrong, told in (
        (["--codes", "8"], "--codes must be PARTSxCODEWORDS, as 8x256, got '8'"),
        (["--codes", "3x300"], "num_codewords must be at least 2 and at most the 256 that a byte tells apart, got 300"),
        (["--keep-vectors"], "keep_vectors must be given with codes, got none: add --codes, such as 8x256"),
        (["--code-lists", "3"], "code_lists must be given with codes, got none"),
    ):
        assert main(["encode", "--run", "mixture", "--version", "wrong", *wrong, *storage]) == 2
        assert told in capfd.readouterr().err
