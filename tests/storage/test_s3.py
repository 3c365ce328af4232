"""What can go wrong between here and a bucket, and what is said about it."""

import multiprocessing
import os
import re
import socket
import time
import urllib.request
from collections.abc import Callable, Iterator

import pytest
from botocore.exceptions import ReadTimeoutError

from rails_ray.errors import ConflictError, NotFoundError, RailsRayError, StorageError
from rails_ray.storage import s3 as s3_files
from rails_ray.storage.filesystem import Storage
from support.ports import free_port
from support.s3_server import KEY_ID, SECRET, FaultyProxy, answer, cut_answer, delay, drop, lose_answer

CHECKSUM_HEADERS = (
    *(f"x-amz-checksum-{kind}" for kind in ("crc32", "crc32c", "crc64nvme", "sha1", "sha256")),
    *("x-amz-sdk-checksum-algorithm", "x-amz-checksum-algorithm", "x-amz-checksum-mode", "x-amz-trailer"),
    "content-encoding",  # aws-chunked
)
CALLS: dict[str, Callable[[Storage], object]] = {
    "exists": lambda storage: storage.exists("a/b"),
    "read": lambda storage: storage.read("a/b"),
    "read_tagged": lambda storage: storage.read_tagged("a/b"),
    "write": lambda storage: storage.write("a/b", b""),
    "create": lambda storage: storage.create("a/b", b""),
    "swap": lambda storage: storage.swap("a/b", b"", '"tag"'),
    "list": lambda storage: storage.list("a"),
    "delete": lambda storage: storage.delete("a/b"),
    "check_conditional": lambda storage: storage.check_conditional(),
}


@pytest.fixture
def proxy(s3: str, s3_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    with FaultyProxy(s3_server) as made:
        monkeypatch.setenv("AWS_ENDPOINT_URL", made.url)
        yield made


@pytest.fixture
def storage(s3: str, proxy: FaultyProxy) -> Storage:
    """In a bucket behind the proxy."""
    return Storage(f"{s3}/prefix")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a storage is opened: two attempts of a second at most."""
    monkeypatch.setattr(s3_files, "ATTEMPTS", 2)
    monkeypatch.setattr(s3_files, "CONNECT_TIMEOUT_S", 1)
    monkeypatch.setattr(s3_files, "READ_TIMEOUT_S", 1)


def message_of(call: Callable[[], object], kind: type[RailsRayError] = StorageError) -> str:
    """What is said, which is one line and holds no secret."""
    with pytest.raises(RailsRayError) as caught:
        call()
    assert isinstance(caught.value, kind)
    assert caught.value.__context__ is None or caught.value.__suppress_context__  # nothing of the library's below it
    text = str(caught.value)
    for hidden in (SECRET, KEY_ID, "\n", "Traceback"):
        assert hidden not in text
    return text


def conditions_of(storage: Storage) -> str:
    """The sentence about conditional writes."""
    return (
        f"storage {storage} must honour conditional writes (If-None-Match, If-Match), got a server that ignores or "
        "refuses them: update it, or use a bucket on a server that honours them"
    )


def test_a_missing_bucket_is_no_missing_file(s3: str) -> None:
    storage = Storage("s3://no-such-bucket/prefix")
    for call in CALLS.values():
        found = message_of(lambda call=call: call(storage), NotFoundError)
        assert re.match(rf"bucket 'no-such-bucket' must exist for {storage}/\S+, got none: create it or name", found)


@pytest.mark.parametrize(
    ("variables", "kind"),
    [
        ({}, "NoCredentialsError"),
        ({"AWS_ACCESS_KEY_ID": KEY_ID}, "PartialCredentialsError"),
        ({"AWS_PROFILE": "nobody"}, "ProfileNotFound"),
    ],
)
def test_no_credentials(s3: str, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], kind: str) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    storage = Storage(s3)
    for call in CALLS.values():
        found = message_of(lambda call=call: call(storage))
        assert re.match(rf"storage {s3}/\S+ must have credentials, got {kind}: set AWS_ACCESS_KEY_ID and AWS_S", found)


@pytest.mark.parametrize(
    ("status", "code", "remedy"),
    [
        (403, "AccessDenied", "check the credentials and what they may do"),
        (403, "InvalidAccessKeyId", "check the credentials and what they may do"),
        (403, "SignatureDoesNotMatch", "check the credentials and what they may do"),
        (400, "ExpiredToken", "renew the credentials and run it again"),
        (400, "InvalidRequest", "check the bucket, AWS_REGION and AWS_ENDPOINT_URL"),
    ],
)
def test_a_refusal(storage: Storage, proxy: FaultyProxy, status: int, code: str, remedy: str) -> None:
    for method in ("GET", "PUT", "DELETE"):
        proxy.fail(method, answer(status, code), times=100)
    for call in CALLS.values():
        found = message_of(lambda call=call: call(storage))
        assert re.match(rf"storage must answer \w+ of {storage}/\S+, got {code} \(HTTP {status}\): {remedy}$", found)
    # None is asked again; check_conditional tries to delete its probe, and whether it was the condition.
    assert len(proxy.requests) == len(CALLS) + 1 + (status == 400)


def test_who_may_write_but_not_delete_is_told_at_once(storage: Storage, proxy: FaultyProxy) -> None:
    proxy.fail("DELETE", answer(403, "AccessDenied"))
    found = message_of(storage.check_conditional)
    assert re.match(rf"storage must answer DeleteObject of {storage}/\.probe-\w+, got AccessDenied \(HTTP 403\)", found)


@pytest.mark.parametrize("fault", [answer(500, "InternalError"), answer(503, "SlowDown"), answer(502, ""), drop])
def test_passing_failures_are_tried_again(storage: Storage, proxy: FaultyProxy, fault) -> None:
    for method in ("PUT", "GET", "DELETE"):
        proxy.fail(method, fault)
    storage.write("a", b"1")
    assert storage.read("a") == b"1"
    storage.delete("a")
    assert storage.list("") == []


@pytest.mark.parametrize(("status", "code"), [(500, "InternalError"), (503, "SlowDown")])
def test_a_server_that_keeps_failing(s3: str, proxy: FaultyProxy, impatient: None, status: int, code: str) -> None:
    storage = Storage(s3)
    for method in ("GET", "PUT", "DELETE"):
        proxy.fail(method, answer(status, code), times=100)
    said = rf"storage must answer \w+ of {s3}/\S+, got {code} \(HTTP {status}\) after 2 attempts: run it again later"
    for name in ("read", "write", "list", "delete"):
        assert re.match(said, message_of(lambda name=name: CALLS[name](storage)))
    assert len(proxy.requests) == 8


@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_a_server_that_is_slow_once(s3: str, proxy: FaultyProxy, impatient: None, method: str) -> None:
    storage = Storage(s3)
    proxy.fail(method, delay(2))
    storage.write("a", b"1")
    assert storage.read("a") == b"1"
    assert proxy.count(method) == 2


@pytest.mark.parametrize("call", ["write", "read", "list"])
@pytest.mark.long
def test_a_server_that_does_not_answer(s3: str, monkeypatch: pytest.MonkeyPatch, impatient: None, call: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        began = time.monotonic()
        found = message_of(lambda: CALLS[call](Storage(s3)))
        assert time.monotonic() - began < 15
    said = rf"storage {s3}/a\S* must be reachable, got ReadTimeoutError repeatedly from {url}: check AWS_ENDPOINT"
    assert re.match(said, found)


def test_a_server_that_is_not_there(s3: str, monkeypatch: pytest.MonkeyPatch, impatient: None) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    found = message_of(Storage(s3).check_conditional)
    said = rf"storage {s3}/\.probe-\w+ must be reachable, got EndpointConnectionError repeatedly from {url}: check"
    assert re.match(said, found)


def test_an_endpoint_with_credentials_is_not_repeated(
    s3: str, monkeypatch: pytest.MonkeyPatch, impatient: None
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{KEY_ID}:{SECRET}@127.0.0.1:{free_port()}")
    storage = Storage(s3)
    assert "must be reachable, got " in message_of(storage.check_conditional)
    late = ReadTimeoutError(endpoint_url=f"http://{KEY_ID}:{SECRET}@host:9000/bucket/a")  # as another client would tell
    assert "got ReadTimeoutError repeatedly from http://host:9000: check" in str(storage.files.failure(late, "a"))


def test_an_endpoint_that_is_no_url(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "localhost:9000")
    found = message_of(Storage(s3).check_conditional)
    assert re.match(
        rf"storage {s3}/\S+ must be set up, got ValueError: .*AWS_ENDPOINT_URL, a URL such as http://", found
    )


def test_the_endpoint_of_s3_goes_before_that_of_all_services(
    s3: str, s3_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3_server)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    Storage(s3).check_conditional()


def test_a_download_that_breaks_off_is_begun_again(storage: Storage, proxy: FaultyProxy) -> None:
    data = bytes(range(256)) * 1000
    storage.write("a", data)
    proxy.fail("GET", cut_answer, times=2)
    assert storage.read("a") == data
    proxy.fail("GET", cut_answer, times=3)
    found = message_of(lambda: storage.read("a"))
    assert re.match(rf"storage {storage}/a must be reachable, got \w+ repeatedly from .*: check", found)


@pytest.mark.parametrize("exists", [False, True], ids=["create", "swap"])
def test_a_won_write_whose_answer_was_lost_is_a_success(storage: Storage, proxy: FaultyProxy, exists: bool) -> None:
    if exists:
        storage.create("a", b"old")
    tagged = storage.read_tagged("a")
    puts = proxy.count("PUT")
    proxy.fail("PUT", lose_answer)
    storage.swap("a", b"ours", tagged and tagged.tag)
    assert proxy.count("PUT") == puts + 2
    assert storage.read("a") == b"ours"


def test_a_lost_write_stays_lost_when_answers_are_lost(storage: Storage, proxy: FaultyProxy) -> None:
    storage.create("a", b"theirs")
    proxy.fail("PUT", lose_answer)
    with pytest.raises(ConflictError, match=r"/a must not exist yet, got a file that someone else wrote first"):
        storage.create("a", b"ours")
    assert storage.read("a") == b"theirs"


def test_writes_that_cross_are_tried_again(storage: Storage, proxy: FaultyProxy) -> None:
    """S3 answers 409 to a conditional write that meets another one; neither need have won."""
    proxy.fail("PUT", answer(409, "ConditionalRequestConflict"))
    storage.create("a", b"1")
    proxy.fail("PUT", answer(409, "ConditionalRequestConflict"))
    storage.swap("a", b"2", storage.read_tagged("a").tag)
    assert storage.read("a") == b"2"
    proxy.fail("PUT", answer(409, "ConditionalRequestConflict"))
    with pytest.raises(ConflictError, match="a must not exist yet"):
        storage.create("a", b"3")


def test_a_file_that_is_gone_is_a_conflict(storage: Storage, proxy: FaultyProxy) -> None:
    storage.create("a", b"1")
    proxy.fail("PUT", answer(404, "NoSuchKey"))
    with pytest.raises(ConflictError, match="a must still be as it was read, got a change"):
        storage.swap("a", b"2", storage.read_tagged("a").tag)


def test_a_server_that_ignores_conditions(storage: Storage, proxy: FaultyProxy) -> None:
    storage.check_conditional()
    proxy.ignores_conditions = True
    assert message_of(storage.check_conditional) == conditions_of(storage)
    assert storage.files.list("") == []


@pytest.mark.parametrize("status", [304, 400, 405, 501])
def test_a_server_that_refuses_conditions(storage: Storage, proxy: FaultyProxy, status: int) -> None:
    """As Ceph, older MinIO and others do."""
    proxy.refuse(answer(status, "NotImplemented"), "if-none-match", "if-match")
    assert message_of(storage.check_conditional) == conditions_of(storage)
    assert proxy.count("DELETE") == 1
    proxy.refuse(answer(501, "NotImplemented"), "if-match")  # it creates on a condition, and replaces on none
    assert message_of(storage.check_conditional) == conditions_of(storage)


def test_a_server_that_ignores_conditions_where_a_file_has_versions(storage: Storage, proxy: FaultyProxy) -> None:
    storage.check_conditional()
    proxy.ignores_conditions_after_delete = True
    assert message_of(storage.check_conditional) == conditions_of(storage)


def test_a_bucket_that_keeps_versions(s3: str, s3_server: str) -> None:
    body = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"
    url, headers = f"{s3_server}/{s3.removeprefix('s3://')}?versioning=", {"content-type": "application/xml"}
    versioning = urllib.request.Request(url, body, headers, method="PUT")
    with urllib.request.urlopen(versioning):
        Storage(s3).check_conditional()


def test_no_checksum_is_sent_that_an_older_server_does_not_know(
    storage: Storage, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_files, "MOST_BYTES_OF_PUT", 6 * 2**20)
    monkeypatch.setattr(s3_files, "BYTES_OF_PART", 5 * 2**20)
    proxy.refuse(answer(400, "InvalidArgument"), *CHECKSUM_HEADERS)
    data = bytes(2**20) * 7
    storage.check_conditional()
    storage.write("a", data)
    assert storage.copy("a", "b") == len(data)
    with storage.open("b") as opened:
        assert opened.file.read(5) == bytes(5)
    assert storage.read("b") == data
    assert storage.list("") == ["a", "b"]
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_supported")
    assert "InvalidArgument" in message_of(lambda: Storage(str(storage)).write("c", b"1"))


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy"])
def test_no_proxy_leads_to_a_store_on_this_machine(s3: str, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.delenv("NO_PROXY")
    monkeypatch.setenv("no_proxy", "intranet.example")
    monkeypatch.setenv(variable, f"http://127.0.0.1:{free_port()}")
    Storage(s3).check_conditional()
    assert os.environ["NO_PROXY"].split(",")[0] == "intranet.example"


@pytest.mark.parametrize("scheme", ["s3a", "s3n"])
def test_hadoops_names_of_s3(s3: str, scheme: str) -> None:
    Storage(s3).write("a/b", b"1")
    other = Storage(s3.replace("s3:", f"{scheme}:"))
    assert (other.read("a/b"), str(other)) == (b"1", s3)


def test_opening_asks_nothing(s3: str, proxy: FaultyProxy) -> None:
    Storage(s3)
    assert proxy.requests == []


def test_more_files_than_a_server_lists_at_once(s3: str) -> None:
    storage = Storage(s3)
    names = sorted(f"{number}" for number in range(25))
    for name in names:
        storage.write(f"a/{name}", b"")
    assert storage.list("a") == names


def test_credentials_are_those_of_the_day(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A storage that is opened after the environment changed does not get a former one's client."""
    Storage(s3).check_conditional()
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert "NoCredentialsError" in message_of(Storage(s3).check_conditional)


def test_a_fork_has_a_client_of_its_own(s3: str) -> None:
    storage = Storage(s3)
    storage.write("a", b"1")
    child = multiprocessing.get_context("fork").Process(target=lambda: storage.write("b", storage.read("a")))
    child.start()
    child.join(timeout=60)
    assert child.exitcode == 0
    assert storage.read("b") == b"1"


def test_a_file_that_is_too_large_for_one_request_is_sent_in_parts(
    storage: Storage, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """5 MiB is the least that S3 takes as a part."""
    monkeypatch.setattr(s3_files, "MOST_BYTES_OF_PUT", 2**20)
    monkeypatch.setattr(s3_files, "BYTES_OF_PART", 5 * 2**20)
    data = bytes(range(256)) * 2**15 + b"rest"
    puts = proxy.count("PUT")
    storage.write("a", data)
    assert storage.read("a") == data
    assert proxy.count("PUT") == puts + 2
    proxy.fail("PUT", answer(403, "AccessDenied"), times=9)
    assert "storage must answer UploadPart of" in message_of(lambda: storage.write("a", data + b"more"))
    assert storage.read("a") == data


def test_a_large_file_is_copied_in_parts(storage: Storage, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server answers a copy when it has made it, so that one request could outlast its timeout."""
    monkeypatch.setattr(s3_files, "BYTES_OF_PART", 5 * 2**20)
    data = bytes(range(256)) * 2**15 + b"rest"
    storage.write("a", data)
    puts = proxy.count("PUT")
    assert storage.copy("a", "b") == len(data)
    assert storage.read("b") == data
    assert proxy.count("PUT") == puts + 2
    proxy.fail("PUT", answer(403, "AccessDenied"), times=9)
    assert "storage must answer UploadPartCopy of" in message_of(lambda: storage.copy("a", "b"))
    assert storage.read("b") == data
