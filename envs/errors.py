"""The one exception for input a user can mend; every app prints it as one line and exits with 2."""

from __future__ import annotations


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
