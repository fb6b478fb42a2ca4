"""Bad files and bad rows, format by format; rows made by hand after the published descriptions."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest
from random_traces import jobs_of, left_out, table

from envs.cluster.workload.readers.canonical import CanonicalReader
from envs.cluster.workload.readers.job_logs import (
    AcmeReader,
    HeliosReader,
    ItpReader,
    PaiReader,
    PhillyReader,
)
from envs.cluster.workload.readers.openb import OpenbReader
from envs.cluster.workload.readers.read_trace import TraceReader
from envs.cluster.workload.readers.slurm import SlurmReader
from tests.refusal import refusal

ITP = "job_id,submission_time,duration,num_gpu"
READERS: dict[str, tuple[TraceReader, str, str]] = {  # reader, header, a sound row of job {}
    "itp": (ItpReader(), ITP, "{},7,600,4"),
    "philly": (
        PhillyReader(),
        "timestamp,duration,num_gpus,gpu_time,cluster",
        "2017-10-09 06:13:03,2951.0,1,2951.0,6214e9",
    ),
    "canonical": (
        CanonicalReader(), "job_id,submit_s,duration_s,num_gpus,gpu_milli", "{},7,600,4,1000",
    ),
    "helios": (
        HeliosReader(),
        "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,"
        "queue",
        "{},u1,vc1,4,16,1,FAILED,2020-06-09 18:41:27,,,249,0",
    ),
    "pai": (
        PaiReader(milli=10),
        "job_id,num_inst,submit_time,num_cpu,num_gpu,gpu_type,duration,user",
        "{},1,7,600,100,V100,60,u1",
    ),
    "acme": (
        AcmeReader(),
        "job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,"
        "queue,gpu_time",
        "{},u1,1,8,128,Other,FAILED,2023-03-01 00:18:22+08:00,,,117,32,936.0",
    ),
    "openb": (
        OpenbReader(),
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,"
        "deletion_time,scheduled_time",
        "{},12000,16384,2,1000,,LS,Succeeded,100,200,110",
    ),
    "slurm": (
        SlurmReader(),
        "JobID,Submit,User,State,Start,End,ElapsedRaw,ReqTRES",
        "{},2026-03-01T00:00:00,u1,FAILED,2026-03-01T00:05:00,2026-03-01T00:06:00,60,gres/gpu=4",
    ),
}  # fmt: skip

FAULTS = {  # of rows behind those of jobs a and b, by format; how the error goes on
    "itp": {
        ",7,600,4": "field 'job_id': is missing",
        "a,7,600,4": "field 'job_id': 'a' stands twice",
        "z,,600,4": "field 'submission_time': is missing",
        "z,x,600,4": "field 'submission_time': 'x' is not a number",
        "z,1_0,600,4": "field 'submission_time': '1_0' is not a number",
        "z,-1,600,4": "field 'submission_time': '-1' is negative",
        "z,7,0,4": "field 'duration': '0' is zero",
        "z,7,nan,4": "field 'duration': 'nan' is not finite",
        "z,7,inf,4": "field 'duration': 'inf' is not finite",
        "z,7,1.5,4": "field 'duration': '1.5' is not a whole number",
        "z,7,1e999,4": "field 'duration': '1e999' is not finite",
        "z,7,99999999999999999999,4": "field 'duration': '99999999999999999999' is too large",
        "z,7,600,0": "field 'num_gpu': '0' is zero",
        "z,7,600,2147483648": "field 'num_gpu': '2147483648' is too large",
        "z,7,600": "has 3 cells, the header has 4",
        "z,7,600,4,5": "has 5 cells, the header has 4",
    },
    "philly": {
        "2017-13-09 06:13:03,1.0,1,1.0,a":
            "field 'timestamp': '2017-13-09 06:13:03' is no time of the form",
        "2017-10-09 06:13:03+00:00,1.0,1,1.0,a":
            "field 'timestamp': '2017-10-09 06:13:03+00:00' is no time of the form",
        "2017-10-09 06:13:03,1.0,1,1.0,": "field 'cluster': is missing",
        "2017-10-09 06:13:03,0.0,1,0.0,a": "field 'duration': '0.0' is zero",
    },
    "canonical": {
        "z,7,600,1,1001": "field 'gpu_milli': '1001' is too large",
        "z,7,600,1,0": "field 'gpu_milli': '0' is zero",
        "z,7,600,-1,1000": "field 'num_gpus': '-1' is negative",
    },
    "helios": {
        "z,u,v,-1,1,1,FAILED,2020-06-09 18:41:27,,,9,0": "field 'gpu_num': '-1' is negative",
        "z,u,v,1,1,1,FAILED,2020-06-09,,,9,0": "field 'submit_time': '2020-06-09' is no time",
        "z,u,v,1,x,1,FAILED,2020-06-09 18:41:27,,,9,0": "field 'cpu_num': 'x' is not a number",
    },
    "pai": {
        "z,0,7,600,100,V100,60,u": "field 'num_inst': '0' is zero",
        "z,1,7,600,12.34567,V100,60,u":
            "field 'num_gpu': '12.34567' is no whole number of thousandths",
        "z,2147483647,7,600,800,V100,60,u": "field 'num_inst': '2147483647' is too large",
    },
    "acme": {
        "z,u,1,8,1,O,F,2023-03-01 00:18:22,,,9,0,0":
            "field 'submit_time': '2023-03-01 00:18:22' is no time",
        "z,u,1,8,1,O,F,2023-03-01 00:18:22+08:00,,,,0,0": "field 'duration': is missing",
    },
    "openb": {
        "p-1,12000,16384,2,999,,LS,Succeeded,100,200,110":
            "field 'gpu_milli': '999' is a part of several",
        "p-2,4,8,1,0,G2|G3,LS,Running,120,400,150": "field 'gpu_milli': '0' is zero",
        "p-2,4,8,1,1001,G2|G3,LS,Running,120,400,150": "field 'gpu_milli': '1001' is too large",
        "p-2,4,8,1,46.5,G2|G3,LS,Running,120,400,150":
            "field 'gpu_milli': '46.5' is not a whole number",
        "p-0,500,0,0,10,G2,BE,Failed,120,121,120":
            "field 'gpu_milli': '10' is given, but num_gpu is zero",
        "p-2,-1,8,1,460,G2|G3,LS,Running,120,400,150": "field 'cpu_milli': '-1' is negative",
        "p-2,4,much,1,460,G2|G3,LS,Running,120,400,150":
            "field 'memory_mib': 'much' is not a number",
        ",4,8,1,460,G2|G3,LS,Running,120,400,150": "field 'name': is missing",
        "a,12000,16384,2,1000,,LS,Succeeded,100,200,110": "field 'name': 'a' stands twice",
        "p-2,4,8,1,460,G2|G3,LS,Running,120,400,": "field 'scheduled_time': is missing",
        "p-2,4,8,1,460,G2|G3,LS,Running,120,,150": "field 'deletion_time': is missing",
        "p-2,4,8,1,460,G2|G3,LS,Running,120,150,150":
            "field 'deletion_time': '150' is scheduled_time: no",
        "p-2,4,8,1,460,G2|G3,LS,Running,120,149,150":
            "field 'deletion_time': '149' is before scheduled_time",
        "p-2,4,8,1,460,G2|G3,LS,Running,120,400,119":
            "field 'scheduled_time': '119' is before creation_time",
    },
    "slurm": {
        "z,Unknown,u1,FAILED,2026-03-01T00:05:00,2026-03-01T00:06:00,60,gres/gpu=4":
            "field 'Submit': 'Unknown' is neither a number nor a date",
        "z,2026-03-01T00:00:00,u1,FAILED,soon,2026-03-01T00:06:00,60,gres/gpu=4":
            "field 'Start': 'soon' is neither a number nor a date",
        "z,2026-03-01T00:00:00,u1,FAILED,2026-03-01T00:05:00,2026-03-01T00:04:00,,gres/gpu=4":
            "field 'End': '2026-03-01T00:04:00' is before Start",
        "z,2026-03-01T00:00:00,u1,FAILED,2026-03-01T00:05:00,2026-03-01T00:06:00,1x,gres/gpu=4":
            "field 'ElapsedRaw': '1x' is not a number",
        "z,2026-03-01T00:00:00,u1,FAILED,2026-03-01T00:05:00,2026-03-01T00:06:00,60,gres/gpu=-4":
            "field 'ReqTRES': 'gres/gpu=-4' is unclear",
        "z,2026-03-01T00:00:00,u1,FAILED,2026-03-01T00:05:00,2026-03-01T00:06:00,60":
            "has 7 cells, the header has 8",
    },
}  # fmt: skip


def written(folder: Path, name: str, *rows: str) -> Path:
    """A file of jobs a and b, and more rows."""
    _, header, row = READERS[name]
    return table(folder / f"{name}.csv", header, row.format("a"), row.format("b"), *rows, "")


@pytest.mark.parametrize(
    ("name", "row", "message"), [(name, *case) for name in FAULTS for case in FAULTS[name].items()]
)
def test_a_faulty_row(name: str, row: str, message: str, tmp_path: Path) -> None:
    path, reader = written(tmp_path, name, row), READERS[name][0]
    place = "row 3 (line 4)"
    with refusal("^" + re.escape(f"{path}: record {place}: {message}")) as error:
        reader.read(path)
    found = reader.read(path, strict=False)
    (rejected,) = found.rejected
    assert (len(found.trace), found.rows, found.num_rejected) == (2, 3, 1)
    assert (rejected.rows, rejected.first, rejected.excluded) == (1, place, False)
    assert rejected.field == error.value.field
    assert rejected.reason in str(error.value)


@pytest.mark.parametrize(("row", "message"), FAULTS["openb"].items())
def test_requests_of_pods_do_not_look_at_times(row: str, message: str, tmp_path: Path) -> None:
    path = written(tmp_path, "openb", row)
    if "_time" in message:
        assert len(OpenbReader().read_requests(path)) == 3
    else:
        with refusal(re.escape(message)):
            OpenbReader().read_requests(path)


def test_the_first_faulty_row_is_told_whatever_its_fault(tmp_path: Path) -> None:
    path = written(tmp_path, "itp", "c,7,600,-4", "d,x,600,4", "e,7", "f,7,600,-4", "c,7,600,4")
    with refusal(r"row 3 .line 4.: field 'num_gpu'"):
        ItpReader().read(path)
    found = ItpReader().read(path, strict=False)
    assert left_out(found) == [
        "fault: 2 from row 3 (line 4): num_gpu is negative",
        "fault: 1 from row 4 (line 5): submission_time is not a number",
        "fault: 1 from row 5 (line 6): None has 2 cells, the header has 4",
    ]
    assert jobs_of(found.trace, "job_id") == ["a", "b", "c"]  # the sound one of the two
    assert found.num_rejected + len(found.trace) == found.rows


SAME = (  # edits of a file that change no row
    lambda content: b"\xef\xbb\xbf" + content,  # byte order mark
    lambda content: content.replace(b"\n", b"\r\n"),
    lambda content: content.rstrip(b"\n"),
    lambda content: b"\n" + content.replace(b"\n", b"\n\n \n"),  # blank lines
    lambda content: content.replace(b",", b" , "),
    gzip.compress,
    lambda content: b'"' + content.replace(b",", b'","').replace(b"\n", b'"\n"')[:-1],
)


@pytest.mark.parametrize("name", READERS)
def test_what_a_file_can_be(name: str, tmp_path: Path) -> None:
    reader, header, _ = READERS[name]
    path = written(tmp_path, name)
    content, expected = path.read_bytes(), list(reader.read(path).trace)
    for edit in SAME:
        path.write_bytes(edit(content))
        found = reader.read(path)
        assert found.rows == 2
        assert list(found.trace) == expected

    first, field = (name.encode() for name in header.split(",")[:2])
    for edited, words in (
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (f"{header}\n".encode(), "holds no row"),
        (gzip.compress(content)[:-9], "truncated"),
        (content.decode().encode("utf-16"), "UTF-8"),
        (content + b"\xff", "record line 4: is no text in UTF-8"),
        (content.replace(field, b"other", 1), f"field '{field.decode()}': is missing"),
        (content.replace(first, field, 1), "is missing|twice"),
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
        ItpReader().read(table(tmp_path / "itp.csv", f"{ITP},note", "", *rows))


@pytest.mark.parametrize("name", ["a\0", "a\x1fb", "\x7f", "a\x85b"])
def test_control_characters_in_ids_and_labels_are_refused(name: str, tmp_path: Path) -> None:
    path, header = tmp_path / "itp.csv", "job_id,submit_s,duration_s,num_gpus,user"
    with refusal(r"row 2 .line 3.: field 'job_id': .*control character"):
        ItpReader().read(table(path, ITP, "a,1,600,4", f"{name},2,600,4"))
    with refusal(r"row 1 .line 2.: field 'user': .*control character"):
        CanonicalReader().read(table(path, header, f"a,1,600,4,x{name}y"))


def test_no_row_left(tmp_path: Path) -> None:
    path = table(tmp_path / "itp.csv", ITP, "a,1,0,4", "b,1,0,4", "c,1,600,0")
    with refusal("duration is zero: 2; num_gpu is zero: 1"):
        ItpReader().read(path, strict=False)
