"""Files read whole, gzip or not, and written whole or not at all."""

from __future__ import annotations

import gzip
import os
import tempfile
import zlib
from pathlib import Path

from envs.errors import InputError


def read_content(path: str | Path) -> bytes:
    """The bytes of a file, decompressed where it is gzip.

    Raises:
        InputError: the file cannot be read or is a damaged gzip.
    """
    try:
        content = Path(path).read_bytes()
        return gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"is truncated or damaged ({error})", file=path) from error
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", file=path) from error


def write_atomically(path: Path, content: bytes) -> None:
    """Write `content` beside `path` and move it there: readers never see half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
