"""Message of a wrong request, in one sentence: what must hold, what was given."""

from collections.abc import Sequence
from typing import Any

from rails_ray.schema.fields import LONGEST_ECHO, shortened


def sentence(error: dict[str, Any]) -> str:
    """An error of pydantic as a sentence: what must hold, what came."""
    steps = error["loc"][1:] if error["loc"][:1] == ("body",) else error["loc"]
    given, context = error.get("input"), error.get("ctx", {})
    where, got = _place(steps), shortened(given)
    if steps[:1] == ("header",):
        where = f"header {steps[1]}"
    match error["type"]:
        case "model_attributes_type" | "model_type" | "dict_type":
            return f"{where} must be a JSON object, got {got}"
        case "missing":
            return f"{where} must be given, got none"
        case "extra_forbidden":
            return f"{where} must not be given, as there is no such field, got {got}"
        case "value_error":
            return f"{where} {error['msg'].removeprefix('Value error, ')}"
        case "filter":  # located within the field
            return f"{where}{context['message']}"
        case "key":  # located at the key within its object
            return f"{_place(steps[:-2])} {error['msg']}, got {got}"
        case "too_short" | "string_too_short":
            return f"{where} must have a length of at least {context['min_length']}, got {got}"
        case "too_long" | "string_too_long":
            return f"{where} must have a length of at most {context['max_length']}, got {len(given or ())}"
        case "float_type" | "float_parsing" | "finite_number":
            is_number = isinstance(given, int | float) and not isinstance(given, bool)
            return f"{where} must be {'a finite number' if is_number else 'a number'}, got {got}"
        case "int_type":
            return f"{where} must be an integer, got {got}"
        case "string_type":
            return f"{where} must be a string, got {got}"
        case "bool_type":
            return f"{where} must be true or false, got {got}"
        case "list_type":
            return f"{where} must be a list, got {got}"
        case _:
            return f"{where} {error['msg'].replace('Input should', 'must', 1)}, got {got}"


def _place(steps: Sequence[str | int]) -> str:
    """A place in the body, as a client would write it: queries[0].features['17']."""
    where = ""
    for step in steps:
        is_name = isinstance(step, str) and step.isidentifier() and len(step) <= LONGEST_ECHO
        name = str(step) if is_name else shortened(step)
        where += name if not where else f".{name}" if is_name else f"[{name}]"
    return where or "the body"
