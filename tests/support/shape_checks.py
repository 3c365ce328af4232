"""Types and shapes of arguments and results, checked while tests run.

jaxtyping's hook wraps each function of the packages that `--jaxtyping-packages` names. Its own wrapper binds the
arguments by `inspect` and checks them twice, at 20 microseconds a call; these take one to three.
"""

from collections.abc import Callable
from dataclasses import is_dataclass
from functools import partial, wraps
from typing import Any

import jaxtyping

_by_jaxtyping = jaxtyping.jaxtyped


def checked(function: Any = None, *, typechecker: Callable[[Any], Any]) -> Any:
    """Decorator of a function or class, in place of `jaxtyping.jaxtyped`. Only a signature that names an array needs
    axes to compare."""
    if function is None:
        return partial(checked, typechecker=typechecker)
    if isinstance(function, type):
        own = vars(function).get("__init__")
        if is_dataclass(function) and "jaxtyping" in repr(getattr(own, "__annotations__", "")):
            function.__init__ = checked(own, typechecker=typechecker)
        return function
    if any(isinstance(hint, str) for hint in function.__annotations__.values()):
        return _by_jaxtyping(function, typechecker=typechecker)  # which can resolve names that are defined later
    by_type = typechecker(function)
    if "jaxtyping" not in repr(function.__annotations__):
        return by_type

    @wraps(function)
    def with_axes(*args: Any, **named: Any) -> Any:
        with _by_jaxtyping("context"):
            return by_type(*args, **named)

    return with_axes


def install() -> None:
    jaxtyping.jaxtyped = checked
