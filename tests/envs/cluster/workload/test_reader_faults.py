"""Bad files and bad rows, format by format; rows made by hand after the published descriptions."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from random_traces import holds, table

from envs.cluster.workload.readers.canonical import CanonicalReader
from envs.cluster.workload.readers.job_logs import (
    AcmeReader,
    HeliosReader,
    ItpReader,
    PaiReader,
    PhillyReader,
)
from envs.cluster.workload.readers.read_trace import TraceReader
from tests.refusal import refusal

ITP = "job_id,submission_time,duration,num_gpu\n"
PHILLY = "timestamp,duration,num_gpus,gpu_time,cluster\n"
CANONICAL = "job_id,submit_s,duration_s,num_gpus,gpu_milli\n"
HELIOS = (
    "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
)
PAI = "job_id,num_inst,submit_time,num_cpu,num_gpu,gpu_type,duration,user\n"
ACME = (
    "job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,"
    "queue,gpu_time\n"
)
CLOCK = "2020-06-09 18:41:01"

READERS: dict[str, tuple[TraceReader, str, str]] = {  # reader, header, a sound row with {}
    "itp": (ItpReader(), ITP, "{id},7,600,4"),
    "philly": (PhillyReader(), PHILLY, "2017-10-09 06:13:03,2951.0,1,2951.0,6214e9"),
    "canonical": (CanonicalReader(), CANONICAL, "{id},7,600,4,1000"),
    "helios": (
        HeliosReader(), HELIOS, "{id},u1,vc1,4,16,1,FAILED,2020-06-09 18:41:27,,,249,0",
    ),
    "pai": (PaiReader(milli=10), PAI, "{id},1,7,600,100,V100,60,u1"),
    "acme": (
        AcmeReader(), ACME, "{id},u1,1,8,128,Other,FAILED,2023-03-01 00:18:22+08:00,,,117,32,936.0",
    ),
}  # fmt: skip

FAULTS = [  # format, row, field, words of the error
    ("itp", ",7,600,4", "job_id", "is missing"),
    ("itp", "a,7,600,4", "job_id", "'a' stands twice"),
    ("itp", "z,,600,4", "submission_time", "is missing"),
    ("itp", "z,x,600,4", "submission_time", "'x' is not a number"),
    ("itp", "z,1_0,600,4", "submission_time", "'1_0' is not a number"),
    ("itp", "z,-1,600,4", "submission_time", "'-1' is negative"),
    ("itp", "z,7,0,4", "duration", "'0' is zero"),
    ("itp", "z,7,nan,4", "duration", "'nan' is not finite"),
    ("itp", "z,7,inf,4", "duration", "'inf' is not finite"),
    ("itp", "z,7,1.5,4", "duration", "'1.5' is not a whole number"),
    ("itp", "z,7,1e999,4", "duration", "'1e999' is not finite"),
    ("itp", "z,7,99999999999999999999,4", "duration", "is too large"),
    ("itp", "z,7,600,0", "num_gpu", "'0' is zero"),
    ("itp", "z,7,600,2147483648", "num_gpu", "is too large"),
    ("itp", "z,7,600", None, "has 3 cells, the header has 4"),
    ("itp", "z,7,600,4,5", None, "has 5 cells, the header has 4"),
    ("philly", "2017-13-09 06:13:03,1.0,1,1.0,a", "timestamp", "is no time of the form"),
    ("philly", "2017-10-09 06:13:03+00:00,1.0,1,1.0,a", "timestamp", "is no time of the form"),
    ("philly", "2017-10-09 06:13:03,1.0,1,1.0,", "cluster", "is missing"),
    ("philly", "2017-10-09 06:13:03,0.0,1,0.0,a", "duration", "is zero"),
    ("canonical", "z,7,600,1,1001", "gpu_milli", "'1001' is too large"),
    ("canonical", "z,7,600,1,0", "gpu_milli", "'0' is zero"),
    ("canonical", "z,7,600,-1,1000", "num_gpus", "'-1' is negative"),
    ("helios", "z,u,v,-1,1,1,FAILED,2020-06-09 18:41:27,,,9,0", "gpu_num", "is negative"),
    ("helios", "z,u,v,1,1,1,FAILED,2020-06-09,,,9,0", "submit_time", "is no time"),
    ("helios", "z,u,v,1,x,1,FAILED,2020-06-09 18:41:27,,,9,0", "cpu_num", "is not a number"),
    ("pai", "z,0,7,600,100,V100,60,u", "num_inst", "'0' is zero"),
    ("pai", "z,1,7,600,12.34567,V100,60,u", "num_gpu", "is no whole number of thousandths"),
    ("pai", "z,2147483647,7,600,800,V100,60,u", "num_inst", "is too large"),
    ("acme", "z,u,1,8,1,O,F,2023-03-01 00:18:22,,,9,0,0", "submit_time", "is no time"),
    ("acme", "z,u,1,8,1,O,F,2023-03-01 00:18:22+08:00,,,,0,0", "duration", "is missing"),
]


def written(folder: Path, name: str, *rows: str) -> Path:
    _, header, row = READERS[name]
    sound = [row.format(id=job) for job in ("a", "b")]
    return table(folder / f"{name}.csv", header.strip(), *sound, *rows, "")


@pytest.mark.parametrize(("name", "row", "field", "words"), FAULTS)
def test_a_faulty_row(name: str, row: str, field: str | None, words: str, tmp_path: Path) -> None:
    path, reader = written(tmp_path, name, row), READERS[name][0]
    with refusal(f"^{re.escape(str(path))}: record row 3 .line 4.: .*{re.escape(words)}") as error:
        reader.read(path)
    found = reader.read(path, strict=False)
    (rejected,) = found.rejected
    assert (len(found.trace), found.rows, found.num_rejected) == (2, 3, 1)
    assert (rejected.rows, rejected.first, rejected.excluded) == (1, "row 3 (line 4)", False)
    assert error.value.field == field == rejected.field
    assert rejected.reason in str(error.value)


def test_the_first_faulty_row_is_told_whatever_its_fault(tmp_path: Path) -> None:
    path = written(tmp_path, "itp", "c,7,600,-4", "d,x,600,4", "e,7", "f,7,600,-4", "c,7,600,4")
    with refusal(r"row 3 .line 4.: field 'num_gpu'"):
        ItpReader().read(path)
    found = ItpReader().read(path, strict=False)
    assert [(r.field, r.reason, r.rows) for r in found.rejected] == [
        ("num_gpu", "is negative", 2),
        ("submission_time", "is not a number", 1),
        (None, "has 2 cells, the header has 4", 1),
    ]
    assert found.trace.job_id.tolist() == ["a", "b", "c"]  # the sound one of the two
    assert found.num_rejected + len(found.trace) == found.rows


EDITS: dict[str, Callable[[bytes], bytes]] = {
    "byte order mark": lambda content: b"\xef\xbb\xbf" + content,
    "CRLF": lambda content: content.replace(b"\n", b"\r\n"),
    "no last line end": lambda content: content.rstrip(b"\n"),
    "blank lines": lambda content: b"\n" + content.replace(b"\n", b"\n\n \n"),
    "blanks": lambda content: content.replace(b",", b" , "),
    "gzip": gzip.compress,
    "quotes": lambda content: b'"' + content.replace(b",", b'","').replace(b"\n", b'"\n"')[:-1],
}


@pytest.mark.parametrize("name", READERS)
def test_what_a_file_can_be(name: str, tmp_path: Path) -> None:
    reader, header, _ = READERS[name]
    path = written(tmp_path, name)
    content, expected = path.read_bytes(), reader.read(path).trace
    for edit in EDITS.values():
        path.write_bytes(edit(content))
        found = reader.read(path)
        assert found.rows == 2
        holds(found.trace, job_id=expected.job_id.tolist(), duration_s=expected.duration_s.tolist())

    first, field = header.split(",")[:2]
    for edited, words in (
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (header.encode(), "holds no row"),
        (gzip.compress(content)[:-9], "truncated"),
        (content.decode().encode("utf-16"), "UTF-8"),
        (content + b"\xff", "record line 4: is no text in UTF-8"),
        (content.replace(field.encode(), b"other", 1), f"field '{field}': is missing"),
        (content.replace(first.encode(), field.encode(), 1), "is missing|twice"),
        (content + b'"open,1,2,3\n', "is no CSV"),
    ):
        path.write_bytes(edited)
        for strict in (True, False):
            with refusal(words) as error:
                reader.read(path, strict)
            assert error.value.file == path
    path.unlink()
    with refusal("cannot be read"):
        reader.read(path)


def test_lines_are_counted_as_an_editor_does(tmp_path: Path) -> None:
    rows = ('a,1,600,4,"of two', 'lines"', "", '"c",2,x,4,')
    with refusal(r"row 2 .line 6.: field 'duration'"):
        ItpReader().read(table(tmp_path / "itp.csv", f"{ITP.strip()},note", "", *rows))


@pytest.mark.parametrize("name", ["a\0", "a\x1fb", "\x7f", "a\x85b"])
def test_control_characters_in_ids_and_labels_are_refused(name: str, tmp_path: Path) -> None:
    path, header = tmp_path / "itp.csv", "job_id,submit_s,duration_s,num_gpus,user"
    with refusal(r"row 2 .line 3.: field 'job_id': .*control character"):
        ItpReader().read(table(path, ITP.strip(), "a,1,600,4", f"{name},2,600,4"))
    with refusal(r"row 1 .line 2.: field 'user': .*control character"):
        CanonicalReader().read(table(path, header, f"a,1,600,4,x{name}y"))


def test_no_row_left(tmp_path: Path) -> None:
    path = table(tmp_path / "itp.csv", ITP.strip(), "a,1,0,4", "b,1,0,4", "c,1,600,0")
    with refusal("duration is zero: 2; num_gpu is zero: 1"):
        ItpReader().read(path, strict=False)
