"""Reader of Moirai's example workbooks (Zhang et al., arXiv:2312.04025): .xls, plain or .gz."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from envs.errors import InputError
from envs.files import read_content
from envs.graphs.builder import GraphBuilder
from envs.graphs.readers.graph_file import GraphFile, cost, stem, tabulated_topology

_XLS = b"\xd0\xcf\x11\xe0"  # an OLE2 compound file

Row = dict[str, object]


@dataclass(frozen=True)
class MoiraiReader:
    """Tasks with a time on each of D devices, and a time from device to device for each edge.

    The first sheet holds a row per task: its number, the communication tasks that carry its output
    (`c_task`), its successors (`dir_succ`), its time on each device (`p0`, `p1`, ...), the time of
    each communication from device i to device j (`pc<i><j>`, one value per successor), its memory
    (`mi`), and, in the first row, the memory of each device (`m0`, `m1`, ...). Where `c_task` is
    empty the communication is free.

    Every edge is a tensor of its own, as in the paper's model, with no bytes: the memory of a task
    stays resident. Times and memory have the file's own unit, read as seconds and bytes: the
    published makespans (30.0 and 28.0 of example-1, 1.285 of GoogLeNet) are in it too.

    The topology has the D devices, one port pair each and one link class per ordered pair; its
    bandwidths are infinite, for transfers take the tabulated times.
    """

    format: str = "moirai"

    def accepts(self, content: bytes) -> bool:
        """An .xls workbook."""
        return content.startswith(_XLS)

    def read(self, path: Path) -> GraphFile:
        """The graph, and the devices it is meant for.

        Raises:
            InputError: naming record and field.
        """
        rows, columns = _rows(path)
        tasks = [_identifier(row) for row in rows]
        number: dict[int, int] = {}
        for index, task in enumerate(tasks):
            if number.setdefault(task, index) != index:
                raise InputError("stands twice", record=f"task {task}", field="task")
        devices = [column for column in columns if re.fullmatch(r"p\d+", column)]
        if not devices:
            raise InputError("has no columns p0, p1, ...: not a Moirai workbook")
        d = len(devices)
        pairs = [(i, j) for i in range(d) for j in range(d) if i != j]
        _require(columns, (*(f"pc{i}{j}" for i, j in pairs), *(f"m{i}" for i in range(d))))
        link_classes = ("same", *(f"{i}->{j}" for i, j in pairs))

        builder = GraphBuilder(
            name=stem(path),
            profile_classes=tuple(devices),
            link_classes=link_classes,
        )
        for row, task in zip(rows, tasks, strict=True):
            record = f"task {task}"
            operator = builder.add_operator(
                str(task), profile=[cost(row[device], record, device) for device in devices]
            )
            memory = cost(row["mi"], record, "mi")
            if memory > 0:
                builder.add_parameter(str(task), operator, parameter=memory)
        for row, task in zip(rows, tasks, strict=True):
            successors = _numbers(row["dir_succ"], task, "dir_succ")
            carried = bool(_numbers(row["c_task"], task, "c_task"))
            times = [
                _times(row, f"pc{i}{j}", len(successors), task)
                if carried
                else [0.0] * len(successors)
                for i, j in pairs
            ]
            for position, successor in enumerate(successors):
                if successor not in number:
                    raise InputError(
                        f"unknown task {successor}",
                        record=f"task {task}",
                        field="dir_succ",
                    )
                link = [0.0, *(values[position] for values in times)]
                tensor = builder.add_tensor(number[task], 0.0, link=link)
                builder.add_use(tensor, number[successor])
        link_class = np.zeros((d, d), dtype=np.int64)
        for position, pair in enumerate(pairs, start=1):
            link_class[pair] = position
        held = [
            (f"device{i}", device, cost(rows[0][f"m{i}"], f"task {tasks[0]}", f"m{i}"))
            for i, device in enumerate(devices)
        ]
        bandwidth = np.full(len(link_classes), np.inf)
        return GraphFile(
            graph=builder.build(),
            topology=tabulated_topology(path, held, link_class, link_classes, bandwidth),
            provenance={"format": self.format, "file": path.name, "time_unit": "the file's own"},
        )


def _rows(path: str | Path) -> tuple[list[Row], tuple[str, ...]]:
    """The rows with a task, keyed by the header's columns; and those columns."""
    import xlrd

    content = read_content(path)
    try:
        sheet = xlrd.open_workbook(file_contents=content).sheet_by_index(0)
    except Exception as error:  # xlrd raises IndexError, struct.error, ... on damaged workbooks
        raise InputError(f"is not a readable .xls workbook ({error})") from error
    columns = tuple(str(value) for value in sheet.row_values(0)) if sheet.nrows else ()
    _require(columns, ("task", "c_task", "dir_succ", "mi"))
    start = columns.index("task")
    rows = []
    for index in range(1, sheet.nrows):
        values = sheet.row_values(index)
        if any(value != "" for value in values[start + 1 :]):
            rows.append(dict(zip(columns, values, strict=True)))
    if not rows:
        raise InputError("has no tasks")
    return rows, columns


def _require(columns: Sequence[str], needed: Sequence[str]) -> None:
    for column in needed:
        if column not in columns:
            raise InputError("is missing", record="header", field=column)


def _identifier(row: Row) -> int:
    numbers = _numbers(row["task"], row["task"], "task")
    if len(numbers) != 1:
        raise InputError(f"{row['task']!r} is not a number", field="task")
    return numbers[0]


def _numbers(value: object, task: object, field: str) -> list[int]:
    """`5.0` or `"19,23"` or nothing, as integers."""
    texts = [text for text in str(value).split(",") if text.strip()]
    try:
        numbers = [float(text) for text in texts]
        if any(number != int(number) for number in numbers):
            raise ValueError
    except (ValueError, OverflowError):
        message = f"{value!r} is not a list of task numbers"
        raise InputError(message, record=f"task {task}", field=field) from None
    return [int(number) for number in numbers]


def _times(row: Row, column: str, expected: int, task: int) -> list[float]:
    """The communication times in one cell, one per successor."""
    cells = str(row[column]).split(",")
    if len(cells) != expected:
        raise InputError(
            f"has {len(cells)} times for {expected} successors",
            record=f"task {task}",
            field=column,
        )
    return [cost(cell.strip(), f"task {task}", column) for cell in cells]
