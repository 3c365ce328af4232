"""Files in a bucket of S3, or of a server that speaks its protocol.

Credentials come from botocore's chain (environment, ~/.aws, the machine's role), the endpoint from AWS_ENDPOINT_URL_S3
or AWS_ENDPOINT_URL. Checksums in headers and trailers, which many servers do not know, are sent only if the variables
in `CHECKSUMS` ask for them. Messages name error codes and types but not their texts, which may hold a secret.
"""

import asyncio
import io
import os
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from aiobotocore.httpsession import AIOHTTPSession
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,
    CredentialRetrievalError,
    HTTPClientError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    ReadTimeoutError,
    SSOError,
    TokenRetrievalError,
)
from fsspec.asyn import sync
from numpy.typing import NDArray
from s3fs import S3FileSystem
from s3fs.core import S3_RETRYABLE_ERRORS

from rails_ray.errors import NotFoundError, RailsRayError, StorageError
from rails_ray.storage.remote import ConditionRefusedError, Ranges, below, check_conditional, hashed

# A server that takes a request and never answers costs 5 * 10 s and at most 1 + 2 + 4 + 8 s between the attempts.
ATTEMPTS = 5
CONNECT_TIMEOUT_S = 5
READ_TIMEOUT_S = 10  # without any byte; not for the whole object
SLOWEST_UPLOAD_BYTES_PER_S = 2**19
MOST_BYTES_OF_PUT = 2**32  # S3 takes 5 GiB in one request
BYTES_OF_PART = 2**28  # of a larger file, at most 10,000 parts; of a larger copy, whose answer comes within the timeout
CHECKSUMS = {
    "AWS_REQUEST_CHECKSUM_CALCULATION": "request_checksum_calculation",
    "AWS_RESPONSE_CHECKSUM_VALIDATION": "response_checksum_validation",
}
NO_CONDITIONS = (304, 400, 405, 501)  # status of a write, for its condition perhaps
DOWNLOADS = 3  # attempts to download an object: botocore's own retries end when its bytes begin

NO_CREDENTIALS = (
    CredentialRetrievalError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    SSOError,
    TokenRetrievalError,
)
EXPIRED = ("ExpiredToken", "ExpiredTokenException", "InvalidToken", "RequestExpired", "TokenRefreshRequired")
NO_ANSWER = (ConnectionError, HTTPClientError, OSError, *S3_RETRYABLE_ERRORS)


class _Session(AIOHTTPSession):
    """A session that bounds sending: aiohttp alone waits for ever while it sends, and for `100 Continue` before."""

    async def send(self, request: Any) -> Any:
        size_bytes = int(
            request.headers.get("X-Amz-Decoded-Content-Length") or request.headers.get("Content-Length") or 0
        )
        try:
            return await asyncio.wait_for(
                super().send(request), READ_TIMEOUT_S + size_bytes / SLOWEST_UPLOAD_BYTES_PER_S
            )
        except TimeoutError:
            raise ReadTimeoutError(endpoint_url=request.url) from None


class S3Files:
    """Files whose keys start with a prefix. Listings are not cached, so other processes' writes are visible at once."""

    def __init__(self, bucket: str, prefix: str) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._open()

    def __str__(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    def exists(self, path: str) -> bool:
        # HEAD does not distinguish a missing bucket from a missing key.
        return bool(self._run(self._exists, path))

    def read(self, path: str) -> bytes | None:
        found = self.read_tagged(path)
        return found[0] if found else None

    def read_tagged(self, path: str) -> tuple[bytes, str] | None:
        found: tuple[bytes, str] | None = self._run(self._get, path)
        return found

    def read_hashed(self, path: str, place: int) -> tuple[NDArray[np.uint8], str] | None:
        data = self.read(path)
        return None if data is None else hashed(data, place)

    def open(self, path: str) -> tuple[io.RawIOBase, str] | None:
        found: tuple[int, str] | None = self._run(self._head, path)
        if found is None:
            return None
        size, tag = found
        return Ranges(lambda first, end: self.read_range(path, first, end, tag), size), tag

    def read_range(self, path: str, first: int, end: int, tag: str) -> bytes:
        """The bytes first .. end - 1 of an object.

        Raises:
            StorageError: if the object is not in state `tag` any more.
        """
        data: bytes | None = self._run(self._get_range, path, first, end, tag)
        if data is None:
            raise StorageError(f"{self}/{path} must stay as it is while it is read, got a change: run it again")
        return data

    def write(self, path: str, data: bytes) -> None:
        self._run(self._put, path, data)

    def copy(self, source: str, target: str) -> int | None:
        size: int | None = self._run(self._copy, source, target)
        return size

    def create(self, path: str, data: bytes) -> bool:
        return bool(self._run(self._put, path, data, {"IfNoneMatch": "*"}))

    def swap(self, path: str, data: bytes, tag: str) -> bool:
        return bool(self._run(self._put, path, data, {"IfMatch": tag}))

    def sizes(self, path: str) -> dict[str, int]:
        found: dict[str, int] = self._run(self._sizes, path)
        return {key: found[key] for key in below(found, path)}

    def list(self, path: str) -> list[str]:
        names: set[str] = self._run(self._names, path)
        return sorted(name for name in names if name and not name.startswith("."))

    def delete(self, path: str) -> None:
        self._run(self._delete, path)

    def check_conditional(self) -> None:
        check_conditional(self, "If-None-Match, If-Match")

    def _open(self) -> None:
        self._pid = os.getpid()
        checksums = {option: "when_required" for variable, option in CHECKSUMS.items() if not os.environ.get(variable)}
        self._s3 = S3FileSystem(
            skip_instance_cache=True,  # a cached instance keeps its old credentials and endpoint
            config_kwargs={
                "retries": {"mode": "standard", "total_max_attempts": ATTEMPTS},
                "connect_timeout": CONNECT_TIMEOUT_S,
                "read_timeout": READ_TIMEOUT_S,
                "http_session_cls": _Session,
                **checksums,
            },
        )

    def _run(self, request: Callable[..., Coroutine[Any, Any, Any]], path: str, *arguments: Any) -> Any:
        if self._pid != os.getpid():
            self._open()  # a fork has the client but not its thread
        try:
            return sync(self._s3.loop, request, path, *arguments)
        except (ClientError, BotoCoreError, ValueError, *NO_ANSWER) as error:
            raise self.failure(error, path) from None

    async def _client(self) -> Any:
        # The client itself: s3fs' own methods repeat all attempts and turn errors into OSError.
        return await self._s3.set_session()

    def _key(self, path: str) -> str:
        return "/".join(part for part in (self._prefix, path) if part)

    async def _exists(self, path: str) -> bool:
        client = await self._client()
        key = self._key(path)
        answer = await client.list_objects_v2(Bucket=self._bucket, Prefix=key, MaxKeys=1)
        return any(entry["Key"] == key for entry in answer.get("Contents", []))  # the shortest comes first

    async def _get(self, path: str) -> tuple[bytes, str] | None:
        client = await self._client()
        for left in reversed(range(DOWNLOADS)):
            try:
                answer = await client.get_object(Bucket=self._bucket, Key=self._key(path))
            except ClientError as error:
                if _is_missing(error):
                    return None
                raise
            try:
                async with answer["Body"] as body:
                    return await body.read(), answer["ETag"]
            except S3_RETRYABLE_ERRORS:
                if not left:
                    raise
        return None

    async def _head(self, path: str) -> tuple[int, str] | None:
        client = await self._client()
        try:
            answer = await client.head_object(Bucket=self._bucket, Key=self._key(path))
        except ClientError as error:
            if _status(error) == 404:
                return None
            raise
        return answer["ContentLength"], answer["ETag"]

    async def _get_range(self, path: str, first: int, end: int, tag: str) -> bytes | None:
        client = await self._client()
        request = {"Bucket": self._bucket, "Key": self._key(path), "Range": f"bytes={first}-{end - 1}", "IfMatch": tag}
        for left in reversed(range(DOWNLOADS)):
            try:
                answer = await client.get_object(**request)
            except ClientError as error:
                if _is_missing(error) or _status(error) == 412:
                    return None
                raise
            try:
                async with answer["Body"] as body:
                    data: bytes = await body.read()
                    return data
            except S3_RETRYABLE_ERRORS:
                if not left:
                    raise
        return None

    async def _put(self, path: str, data: bytes, condition: dict[str, str] | None = None) -> bool:
        client = await self._client()
        if len(data) > MOST_BYTES_OF_PUT and not condition:
            await self._put_parts(path, data)
            return True
        for attempt in range(ATTEMPTS):
            try:
                await client.put_object(Bucket=self._bucket, Key=self._key(path), Body=data, **(condition or {}))
                return True
            except ClientError as error:
                if condition and _status(error) in NO_CONDITIONS:
                    raise ConditionRefusedError(str(self.failure(error, path))) from None
                if not condition or not (_is_missing(error) or _status(error) in (409, 412)):
                    raise
                # Perhaps an earlier attempt succeeded but its answer was lost, and the file in the way is ours.
                found = await self._get(path)
                if found is not None and found[0] == data:
                    return True
                if _status(error) != 409:
                    return False
                # Two writes crossed, and perhaps neither won: only another try can tell.
                if attempt == ATTEMPTS - 1:
                    raise
                await asyncio.sleep(0.1 * 2**attempt)
        return False

    async def _put_parts(self, path: str, data: bytes) -> None:
        client = await self._client()

        async def put(part: dict[str, Any], first: int, end: int) -> str:
            answer = await client.upload_part(**part, Body=data[first:end])
            return str(answer["ETag"])

        await self._in_parts(path, len(data), put)

    async def _copy(self, source: str, target: str) -> int | None:
        client = await self._client()
        found = await self._head(source)
        if found is None:
            return None
        size, tag = found
        origin = {"CopySource": {"Bucket": self._bucket, "Key": self._key(source)}, "CopySourceIfMatch": tag}
        if size <= BYTES_OF_PART:
            await client.copy_object(Bucket=self._bucket, Key=self._key(target), **origin)
            return size

        async def copy(part: dict[str, Any], first: int, end: int) -> str:
            answer = await client.upload_part_copy(**part, **origin, CopySourceRange=f"bytes={first}-{end - 1}")
            return str(answer["CopyPartResult"]["ETag"])

        await self._in_parts(target, size, copy)
        return size

    async def _in_parts(
        self, path: str, size: int, send: Callable[[dict[str, Any], int, int], Coroutine[Any, Any, str]]
    ) -> None:
        """Write an object of `size` bytes in parts. `send` makes a part of its bytes first .. end - 1, and gives its
        ETag."""
        client, place = await self._client(), {"Bucket": self._bucket, "Key": self._key(path)}
        upload = {**place, "UploadId": (await client.create_multipart_upload(**place))["UploadId"]}
        try:
            parts = []
            for number, first in enumerate(range(0, size, BYTES_OF_PART), start=1):
                tag = await send({**upload, "PartNumber": number}, first, min(first + BYTES_OF_PART, size))
                parts.append({"PartNumber": number, "ETag": tag})
            await client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
        except BaseException:
            await client.abort_multipart_upload(**upload)  # its parts would be paid for
            raise

    async def _delete(self, path: str) -> None:
        client = await self._client()
        await client.delete_object(Bucket=self._bucket, Key=self._key(path))

    async def _names(self, path: str) -> set[str]:
        client = await self._client()
        folder = f"{self._key(path)}/".lstrip("/")
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=folder, Delimiter="/")
        names = set()
        async for page in pages:
            names |= {entry["Key"][len(folder) :] for entry in page.get("Contents", [])}
            names |= {entry["Prefix"][len(folder) : -1] for entry in page.get("CommonPrefixes", [])}
        return names

    async def _sizes(self, path: str) -> dict[str, int]:
        """The bytes of each key below a folder, without the prefix of storage."""
        client = await self._client()
        folder, start = f"{self._key(path)}/".lstrip("/"), len(self._prefix and f"{self._prefix}/")
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=folder)
        return {entry["Key"][start:]: entry["Size"] async for page in pages for entry in page.get("Contents", [])}

    def failure(self, error: Exception, path: str) -> RailsRayError:
        """The error for a failed request for `path`, in one sentence."""
        where = f"{self}/{path}".rstrip("/")
        kind = type(error).__name__
        if isinstance(error, ClientError):
            code = error.response["Error"]["Code"]
            got = f"storage must answer {error.operation_name} of {where}, got {code} (HTTP {_status(error)})"
            if code == "NoSuchBucket":
                return NotFoundError(
                    f"bucket {self._bucket!r} must exist for {where}, got none: create it or name another"
                )
            if code in EXPIRED:
                return StorageError(f"{got}: renew the credentials and run it again")
            if _status(error) in (401, 403):
                return StorageError(f"{got}: check the credentials and what they may do")
            if _status(error) >= 500 or code == "SlowDown":
                return StorageError(f"{got} after {ATTEMPTS} attempts: run it again later")
            return StorageError(f"{got}: check the bucket, AWS_REGION and AWS_ENDPOINT_URL")
        if isinstance(error, NO_CREDENTIALS):
            return StorageError(
                f"storage {where} must have credentials, got {kind}: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
                "or a profile in ~/.aws, or a role of the machine, and renew them if they have expired"
            )
        if isinstance(error, NO_ANSWER):
            endpoint = urlsplit(str(getattr(error, "kwargs", {}).get("endpoint_url", "")))
            server = f"{endpoint.scheme}://{endpoint.netloc.rpartition('@')[2]}" if endpoint.netloc else "its server"
            return StorageError(
                f"storage {where} must be reachable, got {kind} repeatedly from {server}: "
                "check AWS_ENDPOINT_URL and the network, and run it again"
            )
        return StorageError(
            f"storage {where} must be set up, got {kind}: check ~/.aws, AWS_REGION and AWS_ENDPOINT_URL, "
            "a URL such as http://host:9000"
        )


def _status(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _is_missing(error: ClientError) -> bool:
    """Return whether the object is missing, rather than the bucket."""
    return _status(error) == 404 and error.response["Error"]["Code"] != "NoSuchBucket"
