"""Azurite, Microsoft's own emulator of Azure's storage, in a process of its own."""

import base64
import hashlib
import hmac
import os
import shutil
import subprocess
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest

from support.ports import free_port
from support.processes import wait_for

ACCOUNT = "devstoreaccount1"
KEY = base64.b64encode(b"a key of the tests, of no account anywhere").decode()
# A package of npm, which pip cannot install with the others; `.ci/run` installs it.
HAS_AZURITE = shutil.which("azurite-blob") is not None
needs_azurite = pytest.mark.skipif(not HAS_AZURITE, reason="needs azurite-blob: npm install --global azurite")


@contextmanager
def azurite() -> Iterator[str]:
    """The URL of the account, until the block ends."""
    port = free_port()
    command = ["azurite-blob", "--silent", "--inMemoryPersistence", "--blobPort", str(port), "--skipApiVersionCheck"]
    environment = {**os.environ, "AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}/{ACCOUNT}"
        wait_for(lambda: _answers(url))
        yield url
    finally:
        process.terminate()
        process.wait(timeout=30)


def _answers(url: str) -> bool:
    try:
        return bool(new_container(url))
    except OSError:
        return False


def new_container(url: str) -> str:
    """The name of an empty container, by the request that obstore has no function for.

    Source: https://learn.microsoft.com/rest/api/storageservices/authorize-with-shared-key.
    """
    container, now = f"container-{uuid.uuid4().hex[:12]}", datetime.now(UTC)
    headers = {"x-ms-date": f"{now:%a, %d %b %Y %H:%M:%S} GMT", "x-ms-version": "2023-11-03"}
    signed = "".join(f"{name}:{value}\n" for name, value in headers.items())
    text = "PUT" + "\n" * 12 + f"{signed}/{ACCOUNT}/{ACCOUNT}/{container}\nrestype:container"
    signature = base64.b64encode(hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()).decode()
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{signature}"
    request = urllib.request.Request(f"{url}/{container}?restype=container", method="PUT", headers=headers)
    with urllib.request.urlopen(request, timeout=10):
        return container


def use_azure(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """The environment in which obstore finds the server and its key."""
    for name, value in {
        "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
        "AZURE_STORAGE_ACCOUNT_KEY": KEY,
        "AZURE_ENDPOINT": url,
    }.items():
        monkeypatch.setenv(name, value)
