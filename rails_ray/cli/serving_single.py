"""`rails-ray serve --single`: a version on one machine, without Ray, by one process or by workers."""

import linecache
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from importlib import import_module
from tempfile import TemporaryDirectory
from typing import Any

from rails_ray.cli.base import fail, out
from rails_ray.cli.serving import Serve, check_folder, cutoff_of
from rails_ray.cli.until_stopped import on_signals, telling
from rails_ray.optional import optional
from rails_ray.paths import expanded

LOOK_S = 1.0  # between two looks at the file of keys
SHARED_METRICS = "PROMETHEUS_MULTIPROC_DIR"  # of prometheus_client, which reads it when it is imported


def serve_single(options: Serve) -> None:
    """Serve on this machine until the command is stopped."""
    keys_file = None if options.keys_file is None else str(expanded(options.keys_file).absolute())
    with ExitStack() as stack:
        if options.workers > 1:
            os.environ[SHARED_METRICS] = stack.enter_context(TemporaryDirectory(prefix="rails-ray-"))
        for package in ("fastapi", "uvicorn", "httptools", "orjson", "prometheus_client", "psutil"):
            optional(package, needed_by="rails-ray serve --single", package=package, install="'rails-ray[serve]'")
        options.check_who_gets_in()
        if options.workers > 1:
            from rails_ray.serving.http.workers import single_threaded

            single_threaded()
        host, (serve, leased) = options.host or "127.0.0.1", _loaded(options, keys_file)
        workers_follow = options.workers > 1 and options.follow  # each then has a lease of what it serves
        look = stack.enter_context(nullcontext(lambda: None) if workers_follow else leased())
        check_stop, tell_of_keys = on_signals(), telling(keys_file)

        def tell() -> None:
            tell_of_keys()
            look()

        if options.workers > 1:
            _serve_by_workers(options, serve, leased, host, check_stop, tell)
            return
        with serve(host, None) as server:
            options.say_where(f"http://{host}:{options.port}")
            while server.is_alive():
                check_stop()
                tell()
                server.join(LOOK_S)


Leased = Callable[[], AbstractContextManager[Callable[[], None]]]


def _loaded(options: Serve, keys_file: str | None) -> tuple[Callable[[str, Any], AbstractContextManager[Any]], Leased]:
    """Load the version. Returns what serves it, in a thread, at a host and a socket that it may be given; and a block
    in which this process has a lease of the version that it serves, which is renewed by what the block is given."""
    with out.status("loading torch"):
        import_module("torch")
        linecache.clearcache()  # of sources that it looks into, so that what follows takes their memory
        from rails_ray.allowed_code import AllowedCode
        from rails_ray.reranking.rankers.calling import ranker_of
        from rails_ray.serving import local
        from rails_ray.serving.heap import give_back_code, trim
        from rails_ray.serving.http import logs, query_log
        from rails_ray.serving.http.limits import DEADLINE_S
        from rails_ray.serving.http.running import nothing
        from rails_ray.serving.http.single import SingleProcessServer, listening
        from rails_ray.serving.request_limits import Limits
        from rails_ray.storage.leases import Lease

    own = options.ranker.at_absolute_folder()
    check_folder(own)
    version = local.open(
        options.storage,
        options.version,
        device="cuda" if options.gpus else "cpu",
        ranker=ranker_of(own, AllowedCode.given(options.allow_code).also(own.path)) if own.path else None,
        cutoff=cutoff_of(options.cutoff),
        limits=Limits(deadline_s=DEADLINE_S),
        allow_code=options.allow_code,
    )
    logs.to_stderr()
    noting = query_log.noting(options.log_queries)
    if options.workers == 1:  # a search starts threads, which a fork loses
        version.loaded.check()
    trim()  # what was read on the way
    at_start = give_back_code if version.ranker is None else nothing  # a ranker's threads may load libraries
    if options.workers > 1:
        at_start()  # in this process too, which does not serve

    def serve(host: str, shared: Any) -> AbstractContextManager[Any]:
        server = SingleProcessServer(
            version,
            keys_file,
            ranker_path=own.path or version.ranker_path,
            shadow_fraction=options.shadow_fraction,
            allowed_origins=options.allow_origins,
            on_search=noting,
            follow_s=options.follows_every_s,
            changes_items=options.change_items,
            num_processes=options.workers,
        )
        return listening(server, host=host, port=options.port, shared=shared, at_start=at_start)

    @contextmanager
    def leased() -> Iterator[Callable[[], None]]:
        if local.place_of(options.storage) != options.storage:  # one that is packaged, where nothing is written
            yield lambda: None
            return
        lease = Lease(version.version.storage, lambda: version.manifest.version)
        lease.look()
        try:
            yield lease.look
        finally:
            lease.end()

    return serve, leased


def _serve_by_workers(
    options: Serve,
    serve: Callable[[str, Any], AbstractContextManager[Any]],
    leased: Leased,
    host: str,
    check_stop: Callable[[], None],
    tell: Callable[[], None],
) -> None:
    from rails_ray.serving.http.ports import check_port
    from rails_ray.serving.http.workers import LOOK_S as LOOK_AT_WORKERS_S
    from rails_ray.serving.http.workers import Workers, listening_socket

    check_port(host, options.port)
    with listening_socket(host, options.port) as shared:

        def work(is_stopped: Callable[[], bool]) -> None:
            # One that follows reads another version than the process that it was forked from.
            with serve(host, shared) as server, leased() if options.follow else nullcontext(lambda: None) as renew:
                while server.is_alive() and not is_stopped():
                    renew()
                    server.join(LOOK_AT_WORKERS_S)

        workers = Workers(work, options.workers, fail)
        try:
            workers.start()
            options.say_where(f"http://{host}:{options.port}")
            while True:
                check_stop()
                tell()
                workers.look()
                time.sleep(LOOK_AT_WORKERS_S)  # a change of the file of keys would wake nobody
        finally:
            workers.stop()
