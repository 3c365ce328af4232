"""The stage encode as a command: a run's items, or vectors as they are, into an index version."""

import re
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import tyro

from rails_ray.cli.base import AllowsCode, ExcludesSeen, Stored, load, out, say_next
from rails_ray.cli.stages import data_config
from rails_ray.families.config import RunConfig
from rails_ray.families.recipes import by_name
from rails_ray.families.vector_items.storing import Dtype, IndexOf
from rails_ray.on_ray.environment import has_cluster

if TYPE_CHECKING:
    from rails_ray.families.encoding import EncodeOptions, OnProgress
    from rails_ray.storage.described import Encoded

INDEX_OPTIONS = {  # of encode: the field of an index's config that each fills in
    "index_storage": "storage",
    "nlist": "nlist",
    "hnsw_m": "M",
    "ef_construction": "ef_construction",
}


@dataclass(frozen=True, kw_only=True)
class Encode(AllowsCode, Stored, ExcludesSeen):
    """Encode a run's items into an index version. `rails-ray publish` then makes it ready to serve.

    Args:
        run_name: A run that `rails-ray train` made. With --recipe: a name for the new run.
        recipe: A recipe that trains nothing, vector-cosine or baseline-bm25, in place of a run; the data need no
            queries.
        version: Name of the version. Give the name of an unfinished version to resume it. If left out: the run's name
            and the time.
        shards: Parts of the corpus that are searched in parallel. If left out: 2 on a cluster; 1 of one process, where
            several cost a search more than one does.
        shard_by: position: shards of consecutive items. hash: shards by a hash of the item's id, in which an item stays
            when others come and go.
        workers: Encoders that run in parallel. A single one runs in this process, without Ray, unless RAY_ADDRESS names
            a cluster.
        use_gpu: Give each worker a GPU. If left out: yes, if the cluster has enough GPUs when encoding begins (an
            autoscaling cluster may not have them yet).
        worker_gpus: GPUs of each worker that has any; may be a part of one, such as 0.25.
        part_items: Most items in a part; a crash loses at most one part of each worker.
        codes: Store components as codes: 8x256 cuts each into 8 parts with 256 codewords, which takes 8 bytes. With 16
            codewords or fewer a part takes half a byte. If left out: as the run says.
        keep_vectors: Keep the components beside their codes, which then only choose candidates.
        code_lists: Lists that codes are put in, for the method ivf_lookup. If left out: as the run says, or none.
        keep_texts: Keep the items' texts, so that a heavy ranker can rerank what a search finds (text-rbe always does).
        surrogate: Vectors that find candidates for a mixture, for the method surrogate: ridge or mlp, fitted to its
            scores for 1,000 training queries.
        surrogate_reads: What they are computed from: the query, or the query's scores of 100 items (supports).
        surrogate_width: Width of the map; a vector has one number more. If left out: 63.
        dtype: Type of the numbers of items' vectors. If left out: the run's.
        index: What finds candidates: flat (a scan), ivf (lists) or hnsw (a graph), built by FAISS. If left out: the
            run's.
        index_storage: What the index keeps of a number: fp32, fp16, or sq8 for 8 bits. If left out: fp32.
        index_of: Which vectors of an item the index holds: the mean of its components, each component, or both.
        nlist: Lists of an ivf index. If left out: 4 times the square root of a shard's items, but at most 5,128.
        hnsw_m: Links of an item in an hnsw index. If left out: 32.
        ef_construction: Items in the beam that finds these links. If left out: 80.
        query_encoder: A sentence-transformers model that reads texts as queries, where queries are vectors: the model
            that made the items' vectors. Its folder, or its name if it is in the local cache of Hugging Face.
        folder: Data whose items to encode, such as newer data. If left out: the run's data.
        items: File, folder or pattern of the items alone, in place of --folder.
        zero_vectors: What becomes of items with a vector of zeros, which no cosine compares. refuse: nothing is
            encoded; keep: they are found last.
        attributes: Further columns of the items to store, which filters may name, each NAME or NAME=COLUMN, such as
            category,price. If left out: the run's.
        new_codes: How SOLAR chooses buckets for items that it was not trained on. least_loaded: buckets with room;
            predicted: the buckets that the model predicts for the item's text.
        min_chunks: Fewest trained chunks of SOLAR to accept. If left out: all.
    """

    run_name: Annotated[str | None, tyro.conf.arg(name="run")] = None
    recipe: str | None = None
    version: str | None = None
    shards: int | None = None
    shard_by: Literal["position", "hash"] = "position"
    workers: int = 1
    use_gpu: bool | None = None
    worker_gpus: float = 1.0
    part_items: int = 16_384
    codes: str | None = None
    keep_vectors: bool = False
    code_lists: int | None = None
    keep_texts: bool = False
    surrogate: Literal["none", "ridge", "mlp"] | None = None
    surrogate_reads: Literal["query", "supports"] | None = None
    surrogate_width: int | None = None
    dtype: Dtype | None = None
    index: Annotated[str | None, tyro.conf.arg(metavar="KIND")] = None
    index_storage: Literal["fp32", "fp16", "sq8"] | None = None
    index_of: IndexOf | None = None
    nlist: int | None = None
    hnsw_m: int | None = None
    ef_construction: int | None = None
    query_encoder: str | None = None
    folder: str | None = None
    items: str | None = None
    zero_vectors: Literal["refuse", "keep"] = "refuse"
    attributes: tuple[str, ...] = ()
    new_codes: Literal["least_loaded", "predicted"] = "least_loaded"
    min_chunks: int | None = None

    def run(self) -> dict[str, Any]:
        is_alone = self.workers == 1 and not has_cluster()
        if not is_alone:
            load("encode")
        from rails_ray.cli import rendering
        from rails_ray.families.encoding import EncodeOptions
        from rails_ray.storage import indexes, quantizers
        from rails_ray.storage.filesystem import Storage, timed_name

        run_config = self.untrained()
        run = self.run_name or self.version or timed_name(f"{self.recipe}")  # the same again, to resume the version
        version = self.version or (timed_name(run) if self.run_name else run)
        options = EncodeOptions(
            version=version,
            num_shards=(1 if is_alone else 2) if self.shards is None else self.shards,
            shard_by=self.shard_by,
            num_workers=self.workers,
            use_gpu=self.use_gpu,
            worker_gpus=self.worker_gpus,
            part_items=self.part_items,
            data=data_config(self.folder, self.items, self.excludes_seen, self.zero_vectors, self.attributes),
            stored=self.stored(),
            new_codes=self.new_codes,
            min_chunks=self.min_chunks,
            query_encoder=self.query_encoder,
            allow_code=self.allow_code,
        )
        with rendering.bar(out, f"encode {version}") as on_progress:
            encode = self.encode_here if is_alone else self.encode_on_ray
            encoded = encode(run, run_config, options, on_progress)
        made = f", {len(encoded.indexes)} indexes" if encoded.indexes else ""
        num_shards = len(encoded.shard_items)
        shards = "1 shard" if num_shards == 1 else f"{num_shards} shards"
        out.print(f"version {encoded.version}: {encoded.num_items} items in {shards}{made}")
        for line in rendering.low_recalls(indexes.read_recalls(Storage(self.storage), version, encoded.indexes)):
            out.print(line, highlight=False, markup=False, soft_wrap=True)
        if quantizers.NAME in {entry.path for entry in encoded.files}:
            facts = quantizers.facts(Storage(self.storage).read(f"versions/{encoded.version}/{quantizers.NAME}"))
            out.print(rendering.of_codes(facts))
        say_next(f"rails-ray publish --version {encoded.version}", self.storage)
        return {"version": encoded.version, "num_items": encoded.num_items, "shard_items": encoded.shard_items}

    def encode_here(
        self, run: str, run_config: RunConfig | None, options: "EncodeOptions", on_progress: "OnProgress"
    ) -> "Encoded":
        """Encode in this process."""
        from rails_ray.families.encoding import encode
        from rails_ray.families.in_process import InProcess
        from rails_ray.families.running import fit_run

        if run_config is not None:
            fit_run(run_config, self.storage, run)
        return encode(InProcess(), self.storage, run, options, on_progress)

    def encode_on_ray(
        self, run: str, run_config: RunConfig | None, options: "EncodeOptions", on_progress: "OnProgress"
    ) -> "Encoded":
        """Encode on the cluster, or on one that ends with the command."""
        from rails_ray.families.encoding import encode
        from rails_ray.families.running import fit_run
        from rails_ray.on_ray.cluster import cluster
        from rails_ray.on_ray.encoding import OnRay
        from rails_ray.on_ray.evaluating import data_folder
        from rails_ray.on_ray.nodes import check_shared
        from rails_ray.storage.filesystem import Storage

        with cluster(self.workers + 2):
            store = Storage(self.storage)
            made = None if run_config is None else run_config.data.folder
            check_shared(str(store), data_folder(store, options.data, run=run) if run_config is None else [made])
            executor = OnRay(self.workers)
            if run_config is not None:
                fit_run(run_config, self.storage, run)  # while the workers start
            return encode(executor, self.storage, run, options, on_progress)

    def untrained(self) -> RunConfig | None:
        """The config of the run to make, by a recipe that trains nothing; None for a run that there is.

        Raises:
            ValueError: if neither a run nor a recipe is named, or the recipe trains.
        """
        from rails_ray.families.training_family import training_family

        if self.recipe is None:
            if self.run_name is None:
                raise ValueError("encode must have --run or --recipe, got neither: name a run, or vector-cosine")
            return None
        run_config = by_name(self.recipe)
        if training_family(run_config).trains:
            raise ValueError(
                f"--recipe must name a recipe that trains nothing, got {self.recipe}: run `rails-ray train "
                f"{self.recipe}`, then encode its --run"
            )
        data = data_config(self.folder, self.items, None, self.zero_vectors, self.attributes)
        return replace(run_config, data=data or run_config.data)

    def stored(self) -> dict[str, Any]:
        """How to store items, where it differs from the run's config."""
        index = self.index_config()
        options = {
            "codes": self.sizes(),
            "keep_vectors": self.keep_vectors or None,
            "code_lists": self.code_lists,
            "keep_texts": self.keep_texts or None,
            "surrogate": self.fields_of_surrogate() or None,
            "dtype": self.dtype,
            "index": index,
            "index_of": self.index_of,
        }
        return {name: value for name, value in options.items() if value is not None}

    def index_config(self) -> Any:
        """The config of the index; None for the run's.

        Raises:
            ValueError: if there is no such kind, or it lacks an option.
        """
        from rails_ray.search.indexes.faiss_index import IndexConfig

        made = {config.kind: config for config in get_args(IndexConfig)}
        if self.index is not None and self.index not in made:
            raise ValueError(f"--index must be one of {', '.join(made)}, got {self.index}")
        given = dict[str, Any]()
        for option, name in INDEX_OPTIONS.items():
            value = getattr(self, option)
            kinds = [kind for kind, config in made.items() if name in {own.name for own in fields(config)}]
            if value is not None and self.index not in kinds:
                named, got = f"--{option.replace('_', '-')}", self.index or "none"
                raise ValueError(f"{named} must be given with --index {' or '.join(kinds)}, got {got}")
            if value is not None:
                given[name] = value
        return None if self.index is None else made[self.index](**given)

    def fields_of_surrogate(self) -> dict[str, Any]:
        """The fields of a surrogate that differ from the run's.

        Raises:
            ValueError: if there are fields of one, but it is none.
        """
        given = {"kind": self.surrogate, "reads": self.surrogate_reads, "width": self.surrogate_width}
        for option in ("reads", "width"):
            if given[option] is not None and self.surrogate in (None, "none"):
                got = self.surrogate or "none"
                raise ValueError(f"--surrogate-{option} must be given with --surrogate ridge or mlp, got {got}")
        return {name: value for name, value in given.items() if value is not None}

    def sizes(self) -> tuple[int, int] | None:
        """Parts of a code and codewords of each; None to store items as the run does."""
        from rails_ray.modules.quantizers.product import check_sizes

        if self.codes is None:
            return None
        sizes = re.fullmatch(r"(\d+)x(\d+)", self.codes)
        if sizes is None:
            raise ValueError(f"--codes must be PARTSxCODEWORDS, as 8x256, got {self.codes!r}")
        num_subspaces, num_codewords = int(sizes[1]), int(sizes[2])
        check_sizes(num_subspaces, num_subspaces, num_codewords)
        return num_subspaces, num_codewords
