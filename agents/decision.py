"""What all exported deciders have in common: forms of states and answers, and refusals."""

from __future__ import annotations

import ast
import inspect
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Any, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config

from envs.errors import InputError

DIALECT = "https://json-schema.org/draft/2020-12/schema"
Location = tuple[str | int, ...]
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
        message = f"{message} (and {more} more)" if more else message
        path = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in location)
        super().__init__(message, file="state", field=path.removeprefix(".") or None)


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


def form(kind: type[Kind]) -> type[Kind]:
    """A TypedDict that takes no other keys and converts nothing.

    The text below a field describes it, in the forms that inherit the field as well (which
    pydantic's own `use_attribute_docstrings` does not see).
    """
    declared: Any = ast.parse(inspect.getsource(kind)).body[0]
    known = kind.__annotations__
    for one, below in pairwise(declared.body):
        if isinstance(one, ast.AnnAssign) and isinstance(below, ast.Expr):
            name, text = ast.unparse(one.target), " ".join(ast.literal_eval(below.value).split())
            known[name] = Annotated[known[name], Field(description=text)]
    return with_config(ConfigDict(extra="forbid", strict=True))(kind)


class Form:
    """A kind of document: its schema, and its reader."""

    def __init__(self, document: Any, title: str) -> None:
        self._adapter: TypeAdapter[Any] = TypeAdapter(document)
        self._title = title

    def schema(self) -> dict[str, Any]:
        found = self._adapter.json_schema()
        return {"$schema": DIALECT, **found, "title": self._title}

    def read(self, data: object) -> Any:
        """`data`, or the JSON text in bytes, as such a document.

        Raises:
            StateError: it is none.
        """
        try:
            if isinstance(data, bytes):
                return self._adapter.validate_json(data)
            return self._adapter.validate_python(data)
        except ValidationError as error:
            faults = error.errors(include_url=False, include_context=False, include_input=False)
            raise StateError(*map(_fault, faults[:MOST_FAULTS])) from None


def _fault(fault: Any) -> tuple[Location, str]:
    unknown = fault["type"] == "extra_forbidden"
    message = "is no field of the schema of this policy's states" if unknown else fault["msg"]
    return tuple(fault["loc"]), message


class Decider(ABC):
    """An exported policy: a state in, a decision out; it remembers nothing.

    One state at a time; further threads wait their turn.

    Args:
        state: the form of states, and its title.
        answer: of answers.

    Attributes:
        kind: what it decides on, "cluster" or "placement".
        schema: JSON Schema (draft 2020-12) of the states it takes.
        answer_schema: JSON Schema (draft 2020-12) of its answers.
    """

    kind: str

    def __init__(self, state: tuple[Any, str], answer: tuple[Any, str]) -> None:
        self._form = Form(*state)
        self.schema, self.answer_schema = self._form.schema(), Form(*answer).schema()
        self._lock = threading.Lock()

    @property
    @abstractmethod
    def example(self) -> dict[str, Any]:
        """A small state that it decides on."""

    def decide(self, state: Mapping[str, Any]) -> Decision:
        """What to do in `state`.

        Raises:
            StateError: the state is not one of the schema, or contradicts itself.
            InputError: it is none that the policy was made for.
        """
        return self._decide(self._form.read(dict(state)))

    def decide_json(self, text: bytes) -> Decision:
        """`decide` on a JSON text."""
        return self._decide(self._form.read(text))

    def warm(self) -> None:
        """Decide once on `example`, so that everything is compiled and loaded."""
        self.decide(self.example)

    @abstractmethod
    def _decide(self, state: Any) -> Decision:
        """What to do in a state of the form."""


MOST_FAULTS = 20  # that are named of one state
