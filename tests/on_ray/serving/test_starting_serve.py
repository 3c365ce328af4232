"""How Ray Serve is started: with the options that `serve deploy` gives it, and again where a proxy was not ready."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from ray import serve as ray_serve
from ray.exceptions import ActorDiedError
from ray.serve.config import HTTPOptions
from ray.serve.schema import LoggingConfig

from rails_ray.errors import NotFoundError, UnavailableError
from rails_ray.on_ray.serving import app
from rails_ray.on_ray.serving.listening import VARIABLE
from rails_ray.on_ray.serving.plan import ServeArgs
from support.ports import free_port


def started(monkeypatch: pytest.MonkeyPatch, num_failures: int) -> list[Any]:
    """The options of each try, of which the first ones end with a proxy that Ray has killed."""
    tries = list[Any]()

    def start(http_options: HTTPOptions, logging_config: LoggingConfig) -> None:
        tries.append(http_options)
        if len(tries) <= num_failures:
            raise ActorDiedError

    monkeypatch.setattr(ray_serve, "start", start)
    app.start_serve("127.0.0.1", 8000)
    return tries


@pytest.mark.parametrize("num_failures", [0, 1, 2])
def test_a_proxy_that_was_not_ready_in_time_is_started_again(
    monkeypatch: pytest.MonkeyPatch, num_failures: int
) -> None:
    assert len(started(monkeypatch, num_failures)) == num_failures + 1


def test_one_that_never_is_ready_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    message = (
        "Ray Serve must start, got a proxy that was not ready in time, 3 times: try again when the machine is less"
    )
    with pytest.raises(UnavailableError, match=message):
        started(monkeypatch, 3)


def test_a_variable_without_a_number_is_refused_before_ray_starts_a_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "many")
    args = ServeArgs(storage=str(tmp_path), allow_anonymous=True)
    with pytest.raises(ValueError, match=f"{VARIABLE} must be"), app.served(args, port=free_port()):
        pass


def test_a_server_starts_by_the_keys_that_were_valid_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets as far as looking for its version, or is refused before."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    file = tmp_path / "keys"
    args = ServeArgs(storage=str(tmp_path / "storage"), keys_file=str(file))

    def start() -> None:
        with app.served(args, port=free_port()):
            pass

    for content, refusal in (("short\n", "got 5: nobody gets in until it is fixed"), ("", "nobody gets in until it")):
        file.write_text(content)
        with pytest.raises(ValueError, match=refusal):
            start()
    for content in ("a-key-of-the-test-1\n", "short\n"):
        file.write_text(content)
        with pytest.raises(NotFoundError):
            start()
