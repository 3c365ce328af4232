"""Files in a container of Azure or a bucket of Google Cloud, by the package obstore.

Credentials and endpoints come from the environment, by the names that these clouds' own tools know:
AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY (or AZURE_STORAGE_SAS_TOKEN, or a managed identity);
GOOGLE_APPLICATION_CREDENTIALS, or the machine's role. Messages name error codes but not their texts, which may hold a
secret.
"""

import io
import json
import os
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import obstore
from numpy.typing import NDArray
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import AzureStore, GCSStore

from rails_ray.errors import NotFoundError, RailsRayError, StorageError
from rails_ray.storage.remote import Ranges, below, check_conditional, hashed

RETRIES: Any = {
    "max_retries": 4,
    "retry_timeout": timedelta(seconds=60),
    "backoff": {"init_backoff": timedelta(seconds=0.2), "max_backoff": timedelta(seconds=8), "base": 2},
}
# The time is that of a whole request, with its body. An endpoint may be http://, if the environment names one.
CLIENT: Any = {"connect_timeout": "5 seconds", "timeout": "600 seconds", "allow_http": True}
CONDITIONS = {"az": "If-None-Match, If-Match", "gs": "x-goog-if-generation-match"}  # headers, for messages
BYTES_OF_PART = 2**28  # a larger file is sent in parts
SCHEMES: dict[str, tuple[Callable[..., Any], str]] = {"az": (AzureStore, "container"), "gs": (GCSStore, "bucket")}
NO_CONTAINER = {"ContainerNotFound", "NoSuchBucket"}
_first_user = list[int]()  # the process that used obstore first: its threads do not survive a fork


class ObjectStoreFiles:
    """Files whose keys start with a prefix."""

    def __init__(self, scheme: str, bucket: str, prefix: str, variables: str) -> None:
        """Args:
        variables: of the environment, that name the credentials, for messages.
        """
        self._scheme, self._bucket, self._prefix = scheme, bucket, prefix
        make, self._kind = SCHEMES[scheme]
        self._variables = variables
        self._is_there = False  # whether the container has answered
        try:
            self._store = make(bucket, retry_config=RETRIES, client_options=CLIENT)
        except (BaseError, ValueError) as error:
            raise StorageError(
                f"storage {self} must be set up, got {type(error).__name__}: set {self._variables}"
            ) from None

    def __str__(self) -> str:
        return f"{self._scheme}://{self._bucket}/{self._prefix}".rstrip("/")

    def exists(self, path: str) -> bool:
        return self._head(path) is not None

    def read(self, path: str) -> bytes | None:
        found = self.read_tagged(path)
        return found[0] if found else None

    def read_tagged(self, path: str) -> tuple[bytes, str] | None:
        answer = self._run("read", path, lambda key: obstore.get(self._store, key))
        if answer is None:
            return None
        data = self._run("read", path, lambda _: answer.bytes().to_bytes())
        return data, _tag(answer.meta)

    def read_hashed(self, path: str, place: int) -> tuple[NDArray[Any], str] | None:
        data = self.read(path)
        return None if data is None else hashed(data, place)

    def open(self, path: str) -> tuple[io.RawIOBase, str] | None:
        found = self._head(path)
        if found is None:
            return None
        tag = _tag(found)
        return Ranges(lambda first, end: self._range(path, first, end, found["e_tag"]), found["size"]), tag

    def write(self, path: str, data: bytes) -> None:
        in_parts = len(data) > BYTES_OF_PART
        self._run(
            "write",
            path,
            lambda key: obstore.put(self._store, key, data, use_multipart=in_parts, chunk_size=BYTES_OF_PART),
        )

    def copy(self, source: str, target: str) -> int | None:
        found = self._head(source)
        if found is None:
            return None
        self._run("copy", target, lambda key: obstore.copy(self._store, self._key(source), key))
        return int(found["size"])

    def create(self, path: str, data: bytes) -> bool:
        return self._put(path, data, "create")

    def swap(self, path: str, data: bytes, tag: str) -> bool:
        return self._put(path, data, json.loads(tag))

    def sizes(self, path: str) -> dict[str, int]:
        folder, start = self._key(path), len(self._prefix and f"{self._prefix}/")
        found = self._run("list", path, lambda _: obstore.list(self._store, folder or None).collect())
        sizes = {entry["path"][start:]: int(entry["size"]) for entry in found or []}
        return {key: sizes[key] for key in below(sizes, path)}

    def list(self, path: str) -> list[str]:
        folder = self._key(path)
        found = self._run("list", path, lambda _: obstore.list_with_delimiter(self._store, folder or None))
        keys = [] if found is None else [*found["common_prefixes"], *(entry["path"] for entry in found["objects"])]
        names = {key[len(folder) :].strip("/") for key in keys}
        return sorted(name for name in names if name and not name.startswith("."))

    def delete(self, path: str) -> None:
        self._run("delete", path, lambda key: obstore.delete(self._store, key))

    def check_conditional(self) -> None:
        check_conditional(self, CONDITIONS[self._scheme])

    def _key(self, path: str) -> str:
        return "/".join(part for part in (self._prefix, path) if part)

    def _head(self, path: str) -> Any:
        found = self._run("find", path, lambda key: obstore.head(self._store, key))
        if found is None and not self._is_there:  # its answer does not distinguish a missing container
            self.list("")
        return found

    def _range(self, path: str, first: int, end: int, e_tag: str) -> bytes:
        options: Any = {"range": (first, end), "if_match": e_tag}
        answer = self._run("read", path, lambda key: obstore.get(self._store, key, options=options).bytes().to_bytes())
        if answer is None:
            raise StorageError(f"{self}/{path} must stay as it is while it is read, got a change: run it again")
        return bytes(answer)

    def _put(self, path: str, data: bytes, mode: Any) -> bool:
        """Write on a condition; returns whether it was written."""
        answer = self._run(
            "write", path, lambda key: obstore.put(self._store, key, data, mode=mode, use_multipart=False)
        )
        # Perhaps an earlier attempt succeeded but its answer was lost, and the file in the way is ours.
        return answer is not None or self.read(path) == data

    def _run(self, deed: str, path: str, request: Callable[[str], Any]) -> Any:
        """The answer to a request for a key; None if there is no such file, or a condition was not met."""
        _check_not_forked(str(self))
        try:
            answer = request(self._key(path))
        except (AlreadyExistsError, PreconditionError):
            answer = None
        except (BaseError, OSError) as error:
            if not isinstance(error, FileNotFoundError) or _code(error) in NO_CONTAINER:
                raise self._failure(error, deed, path) from None
            return None
        self._is_there = True
        return answer

    def _failure(self, error: Exception, deed: str, path: str) -> RailsRayError:
        """The error for a failed request for `path`, in one sentence."""
        where, code = f"{self}/{path}".rstrip("/"), _code(error)
        if code in NO_CONTAINER:
            return NotFoundError(
                f"{self._kind} {self._bucket!r} must exist for {where}, got none: create it or name another"
            )
        got = f"storage must {deed} {where}, got {code or type(error).__name__}"
        if isinstance(error, PermissionDeniedError | UnauthenticatedError):
            return StorageError(f"{got}: check {self._variables} and what they may do")
        return StorageError(f"{got}: check the network and {self._variables}, and run it again")


def _tag(meta: Any) -> str:
    """The state of a file, as obstore takes it for a condition."""
    return json.dumps({name: meta[name] for name in ("e_tag", "version") if meta.get(name) is not None})


def _code(error: Exception) -> str:
    """The server's word for what is wrong; empty if it gave none."""
    found = re.search(r"<Code>(\w+)</Code>", str(error))
    return found[1] if found else ""


def _check_not_forked(storage: str) -> None:
    """Raises:
    StorageError: in a fork of a process that used obstore, whose requests would never be answered.
    """
    if not _first_user:
        _first_user.append(os.getpid())
    if _first_user[0] != os.getpid():
        raise StorageError(
            f"{storage} must be used by a process that is no fork of another that used such storage, got one: start "
            "it by spawn or forkserver"
        )
