"""The `rails-ray` command: arguments in, an exit code out. What each command does is in `commands`."""

import os
import secrets
import sys
from collections.abc import Sequence

import tyro

from rails_ray import __version__
from rails_ray.commands import DEFAULT_RECIPE, Command, Train, errors, out
from rails_ray.errors import RailsRayError
from rails_ray.recipes import by_name, names

DESCRIPTION = "Train, index and serve retrieval with learned similarities on Ray."
EXIT_FAILED, EXIT_BAD_ARGUMENT, EXIT_INTERRUPTED = 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; its exit code. Errors that a user can cause are one sentence on stderr."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        command = parse(arguments)
        _quiet_ray()
        command.run()
    except ValueError as error:
        return _fail(error, EXIT_BAD_ARGUMENT)
    except (RailsRayError, OSError) as error:
        return _fail(error, EXIT_FAILED)
    except KeyboardInterrupt:
        errors.print("rails-ray: stopped")
        return EXIT_INTERRUPTED
    return 0


def parse(arguments: Sequence[str]) -> Command:
    """The command that these arguments name.

    Raises:
        ValueError: if a recipe is unknown.
        SystemExit: if an argument is wrong, or help was asked for; as `argparse` does.
    """
    if arguments == ["--version"]:
        out.print(__version__)
        raise SystemExit(0)
    if arguments[:1] == ["train"]:  # which fields there are to override, and their defaults, is the recipe's matter
        named = next((word for word in arguments[1:] if word in names()), DEFAULT_RECIPE)
        default = Train(recipe=named, config=by_name(named))
        command = tyro.cli(Train, prog="rails-ray train", args=arguments[1:], default=default)
        if command.recipe != named:  # a word that is no recipe, or an option's value that is called like another one
            default = Train(recipe=command.recipe, config=by_name(command.recipe))
            command = tyro.cli(Train, prog="rails-ray train", args=arguments[1:], default=default)
        return command
    return tyro.cli(Command, prog="rails-ray", description=DESCRIPTION, args=arguments)


def _quiet_ray() -> None:
    """Let our own progress be what is seen. Ray reads its environment when it is first imported."""
    if "RAY_ADDRESS" not in os.environ:  # a cluster of our own gets a secret of its own, not one in the home folder
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    os.environ.setdefault("RAY_DATA_LOG_LEVEL", "ERROR")


def _fail(error: Exception, code: int) -> int:
    errors.print(f"rails-ray: {error}", highlight=False, markup=False, soft_wrap=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
