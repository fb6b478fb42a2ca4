"""Valid files, damaged in ways that are drawn from a seed, and a watch over what readers touch."""

from __future__ import annotations

import copy
import csv
import io
import json
import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import yaml
from numba import config

Bytes = Callable[[bytes, random.Random], bytes]

ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 10**30, -(10**400), 0.5, -0.0, 1e308, 1e-320,
    float("inf"), float("-inf"), float("nan"), "", " ", "0", "-1", "1e999", "nan", "NaN",
    "a\0b",
    "\x1b[31m", "\ud800", "é" * 40, "x" * 5000, "../../../etc/passwd", "/etc/passwd", "~",
    "${seed}",
    "${", "{{", "'", '"', ",", "\n", "%s%n", [], {}, [[]], [1, "a", None], {"a": {"a": {}}},
    {"_target_": "os.getcwd"}, [0] * 1000,
)  # fmt: skip


def damaged_bytes(content: bytes, rng: random.Random) -> bytes:
    """Bits turned over, a part cut, repeated, filled with zeros or with noise."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(len(data) + 1)
        size = rng.choice((1, 2, 8, 64, 512))
        kind = rng.randrange(7)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[at:]
        elif kind == 2:
            del data[at : at + size]
        elif kind == 3:
            data[at:at] = rng.randbytes(size)
        elif kind == 4:
            data[at:at] = data[at : at + size]
        elif kind == 5:
            data[at : at + size] = bytes(min(size, len(data) - at))
        elif at < len(data):
            data[at] = rng.randrange(256)
    return bytes(data)


def damaged_tree(tree: Any, rng: random.Random) -> Any:
    """A document with odd values, keys left out, renamed or swapped, lists cut or repeated."""
    tree = copy.deepcopy(tree)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        nodes = list(_places(tree))
        if not nodes:
            return copy.deepcopy(rng.choice(ODD))
        parent, key = rng.choice(nodes)
        kind = rng.randrange(8)
        if kind <= 3:
            parent[key] = copy.deepcopy(rng.choice(ODD))
        elif kind == 4:
            del parent[key]
        elif kind == 5:
            other, at = rng.choice(nodes)
            value = copy.deepcopy(other[at])
            parent[key] = value
        elif kind == 6 and isinstance(parent, dict):
            parent[rng.choice(("", "extra", "a\0", f"{key} ", "x" * 300))] = parent.pop(key)
        elif kind == 7:
            value = parent[key]
            for _ in range(rng.choice((3, 50, 200))):
                value = [value]
            parent[key] = value
    return tree


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) of a document."""
    todo = [tree]
    while todo:
        node = todo.pop()
        if not isinstance(node, dict | list):
            continue
        for key in list(node) if isinstance(node, dict) else range(len(node)):
            yield node, key
            todo.append(node[key])


def json_text(tree: Any, rng: random.Random) -> bytes:
    """JSON of a document, now and then with a key that stands twice, or nested without end."""
    text = json.dumps(tree)
    if rng.randrange(100) == 0:
        text = text.replace(":", ":" + "[" * 5000, 1)
    if rng.randrange(10) == 0:
        text = text.replace("{", '{"kind": 1, "kind": 2, "name": 0,', 1)
    return text.encode("utf-8", "surrogatepass")


def damaged_json(content: bytes, rng: random.Random) -> bytes:
    if rng.randrange(4) == 0:
        return damaged_bytes(content, rng)
    return json_text(damaged_tree(json.loads(content), rng), rng)


def damaged_yaml(content: bytes, rng: random.Random) -> bytes:
    if rng.randrange(4) == 0:
        return damaged_bytes(content, rng)
    if rng.randrange(100) == 0:
        return b"a: " + b"[" * 3000
    tree = damaged_tree(yaml.load(content, Loader=yaml.CSafeLoader), rng)
    try:
        return yaml.dump(tree, Dumper=yaml.CSafeDumper, encoding="utf-8")
    except (RecursionError, UnicodeEncodeError):
        return json_text(tree, rng)  # which YAML takes as well


CELLS = (
    "", " ", "-1", "0", "1e400", "nan", "inf", "1.5", "99999999999999999999", "a\0", "\x1b", '"',
    '"a\nb"', "'", "é", "1,2", "2020-13-45 99:99:99", "../x", "true", "0x10", "1_000", "\u200b",
)  # fmt: skip


def damaged_csv(content: bytes, rng: random.Random) -> bytes:
    if rng.randrange(3) == 0:
        return damaged_bytes(content, rng)
    rows = list(csv.reader(io.StringIO(content.decode())))
    for _ in range(rng.choice((1, 1, 3))):
        row = rng.choice(rows)
        kind = rng.randrange(6)
        if kind <= 2 and row:
            row[rng.randrange(len(row))] = rng.choice(CELLS)
        elif kind == 3 and row:
            del row[rng.randrange(len(row))]
        elif kind == 4:
            rows.append(list(row))
        else:
            rng.shuffle(rows if rng.randrange(4) == 0 else row)
    text = rng.choice(("\n", "\r\n", "\r")).join(",".join(row) for row in rows)
    return text.encode("utf-8", "surrogatepass")


def damaged_parquet(content: bytes, rng: random.Random) -> bytes:
    if rng.randrange(2) == 0:
        return damaged_bytes(content, rng)
    frame = pl.read_parquet(io.BytesIO(content))
    header = pl.read_parquet_metadata(io.BytesIO(content))
    name = rng.choice(frame.columns)
    kind = rng.randrange(6)
    if kind == 0:
        frame = frame.drop(name)
    elif kind == 1:
        frame = frame.with_columns(pl.lit(None).alias(name))
    elif kind == 2:
        frame = frame.with_columns(frame[name].cast(pl.String).alias(name))
    elif kind == 3:
        odd = rng.choice((-1, 2**62, 0.5, "x", "a\0", [1], b"\xff", True, float("nan")))
        frame = frame.with_columns(pl.lit(odd, allow_object=False).alias(name))
    elif kind == 4:
        frame = frame.clear() if rng.randrange(2) else frame.rename({name: f"{name}."})
    else:
        frame = frame.with_columns(frame[name].shuffle(rng.randrange(9)).alias(name))
    kept = {key: value for key, value in header.items() if not key.startswith("ARROW")}
    for key in list(kept):
        if rng.randrange(3) == 0:
            kept[key] = damaged_bytes(kept[key].encode(), rng).decode("utf-8", "replace")
    buffer = io.BytesIO()
    frame.write_parquet(buffer, metadata=kept)
    return buffer.getvalue()


def damaged_npz(content: bytes, rng: random.Random) -> bytes:
    if rng.randrange(2) == 0:
        return damaged_bytes(content, rng)
    with np.load(io.BytesIO(content)) as archive:
        arrays = {name: archive[name] for name in archive.files}
    header = json.loads(arrays["header"].tobytes())
    header.pop("sha256", None)
    name = rng.choice(sorted(arrays))
    kind = rng.randrange(6)
    if kind == 0:
        header = damaged_tree(header, rng)
    elif kind == 1:
        del arrays[name]
    elif kind == 2:
        arrays[name] = arrays[name].astype(rng.choice(("<f8", "<i8", "<f4", "U3", "?")))
    elif kind == 3:
        arrays[name] = arrays[name][rng.randrange(3) :]
    elif kind == 4 and arrays[name].size:
        odd = rng.choice((-1, 2**62, -(2**63), 0, 3, 10**9))
        arrays[name].flat[rng.randrange(arrays[name].size)] = odd % 256 if name == "header" else odd
    else:
        arrays[name] = arrays[name].reshape(-1, 1)
    if kind != 1 or name != "header":
        arrays["header"] = np.frombuffer(json_text(header, rng), np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
CHANGES = {
    "os.mkdir": (0,), "os.remove": (0,), "os.rename": (0, 1), "os.rmdir": (0,), "os.link": (1,),
    "os.symlink": (1,), "os.truncate": (0,), "os.chmod": (0,), "shutil.rmtree": (0,),
    "shutil.move": (0, 1),
}  # fmt: skip
FORBIDDEN = {"os.system", "os.exec", "os.posix_spawn", "socket.connect", "pty.spawn"}


class Watch:
    """Notes every file that is written or changed outside of the folders allowed."""

    def __init__(self) -> None:
        self.allowed: Sequence[str] | None = None  # None: nobody watches
        self.touched: list[str] = []
        sys.addaudithook(self._see)

    @contextmanager
    def over(self, *allowed: Path) -> Iterator[None]:
        """Inside, only what lies in `allowed` may be written."""
        kernels = str(config.CACHE_DIR) or "__pycache__"  # of numba, empty: beside the code
        folders = (*map(str, allowed), os.path.abspath(kernels))
        self.allowed = (*(f"{folder}{os.sep}" for folder in folders), "/dev/null")
        try:
            yield
        finally:
            self.allowed = None

    def _see(self, happened: str, arguments: tuple[Any, ...]) -> None:
        if self.allowed is None:
            return
        if happened in FORBIDDEN:
            self.touched.append(f"{happened} {arguments!r}")
        elif happened == "open":
            path, mode, flags = arguments
            writes = bool(flags & WRITES) or any(letter in (mode or "") for letter in "wax+")
            if writes and isinstance(path, str | bytes | os.PathLike):
                self._check(happened, path)
        elif happened in CHANGES:
            for path in (arguments[place] for place in CHANGES[happened]):
                if isinstance(path, str | bytes | os.PathLike):
                    self._check(happened, path)

    def _check(self, happened: str, path: str | bytes | os.PathLike[str]) -> None:
        where = os.path.abspath(os.fsdecode(path))
        assert self.allowed is not None
        if "__pycache__" not in where and not f"{where}{os.sep}".startswith(tuple(self.allowed)):
            self.touched.append(f"{happened} {where}")
