"""What every exported decider has in common: its face, and how bad states are told."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Any, Generic, Protocol, TypeVar, runtime_checkable

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config

from envs.errors import InputError

DIALECT = "https://json-schema.org/draft/2020-12/schema"
Location = tuple[str | int, ...]
Document = TypeVar("Document", bound=Mapping[str, Any])
Kind = TypeVar("Kind")
Name = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f]+$")]


class StateError(InputError):
    """A state that cannot be decided on.

    Attributes:
        faults: where each fault is, and what is wrong there.
    """

    def __init__(self, *faults: tuple[Location, str]) -> None:
        self.faults = faults
        (location, message), more = faults[0], len(faults) - 1
        told = f"{message} (and {more} more)" if more else message
        super().__init__(told, file="state", field=path_of(location) or None)


def path_of(location: Sequence[str | int]) -> str:
    """`jobs[3].num_gpus`."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


@dataclass(frozen=True, eq=False)
class Decision:
    """What a decider answers.

    Attributes:
        actions: what is to be done, in order.
        content: all of the answer, plain data by the decider's `answer_schema`.
        warnings: what of the state was left out of the decision, and why; in `content` too.
    """

    actions: list[dict[str, Any]]
    content: dict[str, Any]
    warnings: list[dict[str, str]] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """The answer as plain data."""
        return self.content


@runtime_checkable
class Decider(Protocol):
    """An exported policy that is told a state and answers what to do; it remembers nothing."""

    @property
    def kind(self) -> str:
        """What it decides on: "cluster" or "placement"."""

    @property
    def schema(self) -> dict[str, Any]:
        """JSON Schema (draft 2020-12) of the states it takes."""

    @property
    def answer_schema(self) -> dict[str, Any]:
        """JSON Schema (draft 2020-12) of its answers."""

    @property
    def example(self) -> dict[str, Any]:
        """A small state that it decides on."""

    def decide(self, state: Mapping[str, Any]) -> Decision:
        """What to do in `state`.

        Raises:
            StateError: the state is none of the schema, or contradicts itself.
            InputError: it is none that the policy was made for.
        """

    def decide_json(self, text: bytes) -> Decision:
        """`decide` on a JSON text."""

    def warm(self) -> None:
        """Decide once on `example`, so that everything is compiled and loaded."""


def form(kind: type[Kind]) -> type[Kind]:
    """A TypedDict that takes no other keys and converts nothing.

    The text below a field describes it, in the forms that inherit the field as well (which
    pydantic's own `use_attribute_docstrings` does not see).
    """
    declared: Any = ast.parse(inspect.getsource(kind)).body[0]
    known = kind.__annotations__
    for one, below in pairwise(declared.body):
        if isinstance(one, ast.AnnAssign) and isinstance(below, ast.Expr):
            name, told = ast.unparse(one.target), " ".join(ast.literal_eval(below.value).split())
            known[name] = Annotated[known[name], Field(description=told)]
    return with_config(ConfigDict(extra="forbid", strict=True))(kind)


class Form(Generic[Document]):
    """A kind of document: its schema, and its reader."""

    def __init__(self, document: type[Document], title: str) -> None:
        self._adapter: TypeAdapter[Document] = TypeAdapter(document)
        self._title = title

    def schema(self) -> dict[str, Any]:
        found = self._adapter.json_schema()
        return {"$schema": DIALECT, **found, "title": self._title}

    def read(self, data: object) -> Document:
        """`data` as such a document.

        Raises:
            StateError: it is none.
        """
        try:
            return self._adapter.validate_python(data)
        except ValidationError as error:
            raise _refusal(error) from None

    def read_json(self, text: bytes) -> Document:
        """The document in a JSON text.

        Raises:
            StateError: it is none.
        """
        try:
            return self._adapter.validate_json(text)
        except ValidationError as error:
            raise _refusal(error) from None


def _refusal(error: ValidationError) -> StateError:
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    return StateError(*((tuple(fault["loc"]), _told(fault)) for fault in faults[:MOST_FAULTS]))


def _told(fault: Any) -> str:
    unknown = fault["type"] == "extra_forbidden"
    return "is no field of the schema of this policy's states" if unknown else str(fault["msg"])


MOST_FAULTS = 20  # that are told of one state
