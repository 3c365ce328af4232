"""Encode the items of a run by tasks on the cluster: Ray Data for the parts, plain tasks for the rest."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import ray

from rails_ray import counting
from rails_ray.families import encoding
from rails_ray.families.config import DataConfig
from rails_ray.families.encoding import EncodeOptions, ShardBy, Shown
from rails_ray.families.encoding_work import EncodingWork
from rails_ray.families.items import NewCodes
from rails_ray.on_ray.cluster import reserved_device
from rails_ray.on_ray.evaluating import data_folder
from rails_ray.on_ray.failures import plain_errors
from rails_ray.on_ray.nodes import check_shared
from rails_ray.on_ray.progress import OnProgress, Reporter, in_task, latest, new_board, watch
from rails_ray.on_ray.task_runner import call, run_tasks, start_workers
from rails_ray.storage.described import Encoded
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.parts import PART_ITEMS, PlannedPart


def encode(
    storage: str,
    run: str,
    *,
    version: str | None = None,
    num_shards: int = 2,
    shard_by: ShardBy = "position",
    num_workers: int = 1,
    part_items: int = PART_ITEMS,
    use_gpu: bool | None = None,
    worker_gpus: float = 1.0,
    data: DataConfig | None = None,
    stored: Mapping[str, Any] = {},
    new_codes: NewCodes = "least_loaded",
    min_chunks: int | None = None,
    query_encoder: str | None = None,
    allow_code: Sequence[str] = (),
    on_progress: OnProgress | None = None,
) -> Encoded:
    """Encode all items of the run's data set and write them as the parts of a version, which stays unpublished.

    What all blocks of items need, such as SOLAR's codes, is made first and stored beside the version. Items keep the
    codes that they have in the run, or else in the current version if it comes from the same run. So items can be
    added and removed without training.

    Call it again for the same version to resume: it writes only the missing parts, and leaves a finished version as it
    is. The same run, items and sizes give the same bytes. Versions share the parts that are equal.

    Args:
        storage: root, a local folder or s3://bucket/prefix.
        version: name of the version; by default the recipe's name and the time.
        num_shards: shards of the corpus.
        shard_by: `position` for shards of consecutive items, whose sizes differ by at most one item; `hash` for shards
            by a hash of the item's id, in which an item stays when others come and go.
        num_workers: encoding tasks that run at the same time.
        part_items: most items in a part; each task loses at most one part if encoding is interrupted.
        use_gpu: whether tasks have GPUs; by default if the cluster has enough of them.
        worker_gpus: GPUs, or part of one, of each task that has any.
        data: data whose items to encode, such as newer data; by default the data in the run's config. Without a folder,
            its tables take the place of the run's.
        stored: how to store items, where it differs from the run's config: `items`, `index` and `index_of` as in
            `DualEncoderConfig`; `dtype` of vectors; `codes`, (parts, codewords) fitted by OPQ; and for codes
            `keep_vectors` and `code_lists`; `keep_texts` to keep items' texts, for heavy rankers; fields of the
            `surrogate`, as in `SurrogateConfig`, whose fit reads the run's own data set, whole, in one task.
        new_codes: how to choose buckets for items without SOLAR codes: the least loaded of a few hashed buckets, or the
            buckets `predicted` for the item's text, so that queries find it before the next training.
        min_chunks: fewest trained chunks of SOLAR to accept; by default all.
        query_encoder: where queries are vectors, the sentence-transformers model that makes them of texts: its folder,
            or its name in the local cache of Hugging Face.
        allow_code: as in `local.open`.
        on_progress: called a few times a second.

    Raises:
        NotFoundError: if there is no such run.
        ValueError: if a row of the items is wrong, there are fewer items than shards, too few chunks, the run's
            config names code that is not allowed, the version was begun with other arguments, or a node does not find
            the local folder of storage or data.
        StorageError: if storage cannot be written to, or a file of the items changes.
    """
    options = EncodeOptions(
        version=version,
        num_shards=num_shards,
        shard_by=shard_by,
        num_workers=num_workers,
        part_items=part_items,
        use_gpu=use_gpu,
        worker_gpus=worker_gpus,
        data=data,
        stored=stored,
        new_codes=new_codes,
        min_chunks=min_chunks,
        query_encoder=query_encoder,
        allow_code=allow_code,
    )
    store = Storage(storage)
    check_shared(str(store), data_folder(store, data, run=run))
    return encoding.encode(OnRay(num_workers), storage, run, options, on_progress)


class OnRay:
    """The contract of `Executor`, on the cluster that this process is connected to. Its processes start at once."""

    def __init__(self, num_workers: int) -> None:
        self.starting = start_workers([__name__, "ray.data"], num_workers)

    def has_gpus(self, number: int) -> bool:
        return bool(ray.cluster_resources().get("GPU", 0) >= number)

    def remotely(self, function: Callable[..., Any], *arguments: Any, on_progress: OnProgress | None) -> Any:
        return in_task(function, *arguments, on_progress=on_progress)

    def each(self, function: Callable[..., None], arguments: Sequence[Sequence[Any]]) -> None:
        with plain_errors():
            ray.get([call.remote(function, *given) for given in arguments])

    def gathered(
        self, together: Callable[..., Any], function: Callable[..., Any], arguments: Sequence[Sequence[Any]]
    ) -> Any:
        with plain_errors():
            ray.wait(self.starting, num_returns=len(self.starting))
            return ray.get(call.remote(together, *[call.remote(function, *given) for given in arguments]))

    def write(
        self,
        work: EncodingWork,
        num_workers: int,
        num_gpus: float,
        items_done: Callable[[Shown], tuple[int, int, str]],
        on_progress: OnProgress | None,
    ) -> None:
        board: Any = None if on_progress is None else new_board()
        work = replace(work, device=reserved_device, counted=partial(_counted, board))
        write = partial(run_tasks, work, len(work.tasks), num_workers, num_gpus)
        if on_progress is None:
            write()
            return
        try:
            watch(write, lambda: items_done(latest(board)), on_progress)
        finally:
            ray.kill(board)


@contextmanager
def _counted(board: Any, part: PlannedPart) -> Iterator[None]:
    report = Reporter(board, part.num_items, piece=str(part.first_row))
    with counting.shown(report.advance):
        yield
