"""Forms of JSON and YAML documents: what pydantic finds wrong is one line that says where."""

from __future__ import annotations

from reprlib import repr as shortened
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from envs.errors import InputError


class Form(BaseModel):
    """A mapping with these keys and no others, whose values are converted to nothing."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


Kind = TypeVar("Kind", bound=Form)


def read_form(
    form: type[Kind], document: object, file: object = None, *, inside: str | None = None
) -> Kind:
    """A document in its form, or what stands under the key `inside` of one.

    Raises:
        InputError: it has another; named are the file, the record (the item of a list, or the key
            of a mapping) and the field.
    """
    try:
        return form.model_validate(document)
    except ValidationError as error:
        faults = error.errors(include_url=False)
        unknown = "extra_forbidden"
        fault = min(faults, key=lambda one: (one["loc"] != ("kind",), one["type"] != unknown))
        where = fault["loc"] or tuple(key for key in ("kind",) if key in form.model_fields)
        place = _place(where)
        if inside is not None:
            place = {"field": ".".join(map(str, (inside, *fault["loc"]))).removeprefix(".")}
        raise InputError(_told(form, fault), file=file, **place) from None


def _place(where: tuple[Any, ...]) -> dict[str, Any]:
    """`stages[2]` and `shards`, or the operator and `placement`, of a wrong key as of its value."""
    first, *rest = [key for key in where if key != "[key]"] or (None,)
    if rest and isinstance(rest[0], int):
        key = ".".join(map(str, rest[1:]))
        return {"record": f"{first}[{rest[0]}]", "field": key or str(first)}
    if len(rest) > 1:
        return {"record": ".".join(map(str, rest[:-1])), "field": str(rest[-1])}
    return {"record": rest[0] if rest else None, "field": first}


def _told(form: type[Form], fault: Any) -> str:
    if fault["type"] == "missing":
        return "is missing"
    if fault["type"] == "extra_forbidden":
        known = f" (known: {', '.join(form.model_fields)})" if len(fault["loc"]) == 1 else ""
        return f"unknown key{known}"
    if fault["type"] == "model_type":
        return f"{shortened(fault['input'])} is not a mapping"
    if fault["type"] == "too_short":
        return f"{shortened(fault['input'])} has fewer items than {fault['ctx']['min_length']}"
    wanted = (
        str(fault["msg"])
        .replace("valid dictionary", "mapping")
        .replace("a valid int", "an int")
        .replace("valid ", "")
    )
    return f"{shortened(fault['input'])} is not {wanted.removeprefix('Input should be ')}"
