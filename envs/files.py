"""Files read whole, gzip or not, JSON among them, and written whole or not at all."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import stat
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from envs.errors import InputError
from envs.memory import require_memory

PARSED = 4  # bytes in memory for each of a file, at least, once it is read
CHUNK = 1 << 24  # bytes
# What no name or id may hold: control characters, and halves of characters that no file can hold.
UNPRINTABLE = r"[\x00-\x1f\x7f-\x9f]"
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_SURROGATE = re.compile(rb"\\u[dD][89abAB]")


def read_content(path: str | Path) -> bytes:
    """The bytes of a file, decompressed where it is gzip.

    Raises:
        InputError: the file cannot be read, is no regular file, a damaged gzip, or larger than this
            machine could work on.
    """
    check_file(path)
    try:
        content = Path(path).read_bytes()
        return _decompressed(content, path) if content.startswith(b"\x1f\x8b") else content
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"is truncated or damaged ({error})", file=path) from error
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", file=path) from error


def check_file(path: str | Path) -> None:
    """Refuse what has no end, as a device, or is larger than this machine could work on.

    Raises:
        InputError: it is, or there is no such file.
    """
    try:
        status = os.stat(path)
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", file=path) from error
    except ValueError as error:  # a character that no path has
        raise InputError(f"cannot be read ({error})", file=path) from error
    if stat.S_ISDIR(status.st_mode):
        raise InputError("cannot be read (Is a directory)", file=path)
    if not stat.S_ISREG(status.st_mode):
        raise InputError("is no regular file", file=path)
    require_memory(PARSED * status.st_size, "what is in it", file=path)


def _decompressed(content: bytes, path: str | Path) -> bytes:
    found = bytearray()
    with gzip.open(io.BytesIO(content)) as stream:
        while chunk := stream.read(CHUNK):
            found += chunk
            require_memory(PARSED * len(found), "what is in it, decompressed,", file=path)
    return bytes(found)


def read_json(path: str | Path) -> Any:
    """What a JSON file holds, gzip or not.

    Raises:
        InputError: the file cannot be read, or as `parse_json`.
    """
    return parse_json(read_content(path), path)


def parse_json(content: bytes, file: object) -> Any:
    """What the JSON in `content` says; `file` is for messages.

    Raises:
        InputError: it is not JSON in UTF-8, nested too deeply, or a key stands twice in an object.
    """
    try:
        document = json.loads(content.decode("utf-8-sig"), object_pairs_hook=_object)
        if _SURROGATE.search(content):
            json.dumps(document, ensure_ascii=False).encode()
    except InputError as error:
        raise InputError(error.message, file=file, record=error.record) from error
    except UnicodeEncodeError as error:
        raise InputError("holds half a character", file=file) from error
    except UnicodeDecodeError as error:
        raise InputError(f"is not JSON: no text in UTF-8 ({error.reason})", file=file) from error
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}"
        raise InputError(f"is not JSON ({error.msg})", file=file, record=where) from error
    except RecursionError as error:
        raise InputError("is not JSON: it is nested too deeply", file=file) from error
    except ValueError as error:  # an integer of thousands of digits
        raise InputError(f"is not JSON ({error})", file=file) from error
    return document


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise InputError("stands twice", record=twice)
    return found


def unprintable(names: Iterable[str]) -> int | None:
    """The place of the first name that holds a control character; None: no name does."""
    names = list(names)
    if _UNPRINTABLE.search("".join(names)) is None:
        return None
    return next(place for place, name in enumerate(names) if _UNPRINTABLE.search(name))


def write_atomically(path: Path, content: bytes) -> None:
    """Write `content` beside `path` and move it there: readers never see half a file.

    Raises:
        InputError: it cannot be written, as on a full disk, or is a device.
    """
    try:
        if path.exists() and not path.is_file():
            reason = "it is a folder" if path.is_dir() else "it is no regular file"
            raise InputError(f"cannot be written ({reason})", file=path)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise InputError(f"cannot be written ({error.strerror})", file=path) from error
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise InputError(f"cannot be written ({error.strerror})", file=path) from error
        raise
