"""The one exception for input a user can mend; every app prints it as one line and exits with 2."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches
from typing import Any


class InputError(Exception):
    """Bad input: what is wrong, and where.

    Args:
        message: what is wrong, in one line.
        file: the file (or config key) at fault.
        record: the row, node or operator inside it.
        field: the column or key of that record.
    """

    def __init__(
        self,
        message: str,
        *,
        file: object | None = None,
        record: object | None = None,
        field: str | None = None,
    ) -> None:
        self.message, self.file, self.record, self.field = message, file, record, field
        where = [str(file)] if file is not None else []
        if record is not None:
            where.append(f"record {record}")
        if field is not None:
            where.append(f"field '{field}'")
        super().__init__(": ".join([*where, message]) if where else message)


class refused_in:  # noqa: N801, a verb, as `contextlib.suppress` is
    """Say in which file, of what is refused inside, and where there unless that says so itself.

    It swallows nothing, which type checkers see: code inside may return.
    """

    def __init__(
        self, file: object | None = None, record: object | None = None, field: str | None = None
    ) -> None:
        self._file, self._record, self._field = file, record, field

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, InputError):
            raise InputError(
                error.message,
                file=self._file or error.file,
                record=self._record if error.record is None else error.record,
                field=error.field or self._field,
            ) from error


def in_one_line(text: object) -> str:
    """A text, or what an error says, without its line breaks."""
    return " ".join(str(text).split())


def require_one_of(value: object, known: Collection[object], **where: Any) -> None:
    """Hold a value against what is known; `where` as for `InputError`.

    Raises:
        InputError: it is not among them.
    """
    if value not in known:
        names = ", ".join(str(name) for name in known if name is not None)
        raise InputError(f"{value!r} is not one of {names}", **where)


def near(word: str, names: Iterable[str]) -> list[str]:
    """The names, three at most, that a word may have meant."""
    known = list(names)
    inside = [name for name in known if word and word in name]
    return list(dict.fromkeys([*get_close_matches(word, known, 3, 0.6), *inside]))[:3]


def meant(word: str, names: Iterable[str]) -> str:
    """A question before what is known, where a name is near."""
    close = near(word, names)
    return f"did you mean {' or '.join(close)}? " if close else ""
