"""Files as a user may have them by accident, or by malice, and a few that are sound."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import yaml

from envs.files import read_json
from envs.graphs.storage import save_graph
from models.artifacts import hashes_of
from tests.agents.cluster.exported_schedulers import advised
from tests.envs.topologies import topology_text
from tests.experiments.execution.plans_of_layers import PLANS
from tests.experiments.layered_step import layered_step
from tests.paths import CONF, ROOT

HEAD = "job_id,submit_s,duration_s,num_gpus\n"
SIX = (
    HEAD
    + "a,0,1000,1\nb,100000,2000,2\nc,200000,100,64\nd,300000,100,1\ne,400000,50,1\nf,500000,50,1\n"
)
TRACES: Mapping[str, str | bytes] = {
    "six.csv": SIX,
    "crlf.csv": SIX.replace("\n", "\r\n"),
    "bom.csv": b"\xef\xbb\xbf" + SIX.encode(),
    "beyond.csv": HEAD + "a,0,10,1\nb,9007199254740993,10,1\n",
    "offset.csv": "at,duration_s,num_gpus\n2026-01-01 00:00:00+99:99,10,1\n",
    "moments.csv": "submit_s,ran,num_gpus\n0,1e-12,1\n5,10,1\n",
    "unsorted.csv": HEAD + "b,50,10,1\na,0,10,1\n",
    "unicode.csv": HEAD + "Ünî-日本,0,10,1\n../../etc/passwd,5,10,1\n",
    "quoted.csv": HEAD + '"a,b",0,10,1\n"c ""d""",5,10,1\n',
    "large_gang.csv": HEAD + "a,0,10,1\nbig,5,10,4096\n",
    "empty.csv": "",
    "blank_lines.csv": "\n\n\n",
    "header.csv": HEAD,
    "no_header.csv": "a,0,10,1\nb,5,10,2\n",
    "no_gpus.csv": "job_id,submit_s,duration_s\na,0,10\n",
    "two_headers.csv": "job_id,submit_s,duration_s,num_gpus,num_gpus\na,0,10,1,2\n",
    "more_cells.csv": HEAD + "a,0,10,1,7\n",
    "fewer_cells.csv": HEAD + "a,0,10\n",
    "open_quote.csv": HEAD + '"a,0,10,1\nb,5,10,2\n',
    "semicolons.csv": SIX.replace(",", ";"),
    "latin1.csv": (HEAD + "Müller,0,10,1\n").encode("latin-1"),
    "utf16.csv": SIX.encode("utf-16"),
    "nul.csv": HEAD + "a\0b,0,10,1\n",
    "bell.csv": HEAD + "a\x07,0,10,1\n",
    "zero_gang.csv": HEAD + "a,0,10,0\n",
    "negative_gang.csv": HEAD + "a,0,10,-1\n",
    "half_gang.csv": HEAD + "a,0,10,1.5\n",
    "huge_gang.csv": HEAD + "a,0,10,99999999999999999999\n",
    "word_gang.csv": HEAD + "a,0,10,one\n",
    "nan_gang.csv": HEAD + "a,0,10,nan\n",
    "zero_duration.csv": HEAD + "a,0,0,1\n",
    "negative_duration.csv": HEAD + "a,0,-5,1\n",
    "inf_duration.csv": HEAD + "a,0,inf,1\n",
    "nan_duration.csv": HEAD + "a,0,nan,1\n",
    "huge_duration.csv": HEAD + "a,0,1e300,1\n",
    "overflowing_duration.csv": HEAD + "a,0,9223372036854775808,1\n",
    "no_duration.csv": HEAD + "a,0,,1\n",
    "negative_submit.csv": HEAD + "a,-1,10,1\n",
    "huge_submit.csv": HEAD + "a,0,10,1\nb,1e19,10,1\n",
    "same_ids.csv": HEAD + "a,0,10,1\na,5,10,1\n",
    "no_id.csv": HEAD + ",0,10,1\n",
    "one_fault.csv": HEAD + "a,0,10,1\nb,5,-1,1\n",
    "binary.csv": bytes(range(256)) * 16,
    "binary.parquet": b"PAR1" + bytes(range(256)) * 4 + b"PAR1",
    "text.parquet": SIX,
    "empty.parquet": b"",
    "truncated.csv.gz": gzip.compress(SIX.encode())[:-12],
    "damaged.csv.gz": gzip.compress(SIX.encode())[:20] + b"\xff" * 40,
    "text.csv.gz": SIX,
    "six.csv.gz": gzip.compress(SIX.encode()),
    "zeros.csv.gz": gzip.compress(bytes(10_000_000)),
    "itp.csv": "job_id,submission_time,duration,num_gpu\na,0,10,1\nb,1,-4,1\nc,3,10,2\n",
    "philly.json": "[{}]",
    "openb.csv": "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\na,1000,1024,1,500,\n",
    "openb_neg.csv": "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\na,-1,1024,1,500,\n",
    "openb_twice.csv": "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"
    + 2 * "a,1000,1024,1,500,\n",
    "openb_milli.csv": "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\na,1000,1,1,1001,\n",
    "nodes.csv": "sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,4,G2\n",
    "no_gpu_nodes.csv": "sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,0,\n",
    "same_nodes.csv": "sn,cpu_milli,memory_mib,gpu,model\n" + 2 * "n0,64000,262144,4,G2\n",
    "huge_nodes.csv": "sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,9999999999,G2\n",
}
FLOW_HEAD = "shard,arrival_ns,size_bytes,src,dst,n_hosts\n"
FLOWS: Mapping[str, str] = {
    "coflows.txt": "3 1\n1 0 1 0 1 1:2.0\n",
    "coflows_port.txt": "3 1\n1 0 1 0 1 9:2.0\n",
    "coflows_short.txt": "3 2\n1 0 1 0 1 1:2.0\n",
    "coflows_flow.txt": "3 1\n0 0 2 1 1 0 1 4 1 2\n",
    "flows.csv": FLOW_HEAD + "0,0,1000,0,1,3\n",
    "flows_word.csv": FLOW_HEAD + "0,0,many,0,1,3\n",
    "flows_nan.csv": FLOW_HEAD + "0,0,nan,0,1,3\n",
    "flows_negative.csv": FLOW_HEAD + "0,0,-5,0,1,3\n",
    "flows_zero.csv": FLOW_HEAD + "0,0,0,0,1,3\n",
    "flows_beyond.csv": FLOW_HEAD + "0,0,1000,0,9,3\n",
    "flows_itself.csv": FLOW_HEAD + "0,0,1000,1,1,3\n",
    "flows_hosts.csv": FLOW_HEAD + "0,0,1000,0,1,999999999999\n",
    "flows_shards.csv": FLOW_HEAD + "999999999999999,0,1000,0,1,3\n",
    "flows_header.csv": FLOW_HEAD,
    "flows_empty.csv": "",
    "flows_columns.csv": "shard,arrival_ns\n0,0\n",
}
DEEP = "[" * 100_000 + "]" * 100_000
YAMLS: Mapping[str, str] = {
    "bomb.yaml": "a: &a [x, x, x, x, x, x, x, x, x]\n"
    + "".join(
        f"{new}: &{new} [{', '.join(['*' + old] * 9)}]\n"
        for old, new in zip("abcdefgh", "bcdefghi", strict=True)
    ),
    "itself.yaml": "_target_: &a [*a]\n",
    "twice.yaml": "_target_: x\n_target_: y\n",
    "no_target.yaml": "name: x\n",
    "list.yaml": "[1, 2]\n",
    "scalar.yaml": "hello\n",
    "empty.yaml": "",
    "tab.yaml": "a:\n\tb: 1\n",
    "deep.yaml": "a: " + "[" * 5000 + "]" * 5000 + "\n",
    "python.yaml": "!!python/object/apply:os.system [touch pwned]\n",
    "latin1.yaml": "name: Müller",
    "evil_target.yaml": "_target_: os.system\ncommand: touch pwned\n",
}


def make_all(folder: Path) -> None:
    """Fill `folder`."""
    for name, content in {**TRACES, **FLOWS, **YAMLS}.items():
        raw = content.encode() if isinstance(content, str) else content
        (folder / name).write_bytes(raw)
    (folder / "latin1.yaml").write_bytes(YAMLS["latin1.yaml"].encode("latin-1"))
    (folder / "folder.csv").mkdir()
    (folder / "folder.npz").mkdir()
    (folder / "folder.yaml").mkdir()
    (folder / "dangling.csv").symlink_to("nowhere.csv")
    (folder / "loop.csv").symlink_to("loop.csv")
    (folder / "zero.csv").symlink_to("/dev/zero")
    (folder / "link.csv").symlink_to("six.csv")
    os.mkfifo(folder / "pipe.csv")
    (folder / "a'b c.csv").write_text(SIX)
    _graphs(folder)
    _profiles(folder)
    _plans(folder)
    _checkpoints(folder)
    _runs(folder)


def _graphs(folder: Path) -> None:
    graph = layered_step(3, 2)
    save_graph(graph, folder / "graph.npz")
    save_graph(graph, folder / "graph.json")
    whole = (folder / "graph.npz").read_bytes()
    (folder / "truncated.npz").write_bytes(whole[: len(whole) // 2])
    (folder / "damaged.npz").write_bytes(whole[:200] + b"\xff" * 50 + whole[250:])
    (folder / "empty.npz").write_bytes(b"")
    (folder / "deep.json").write_text(DEEP)
    (folder / "list.json").write_text("[]")
    (folder / "number.json").write_text("1" * 10_000)
    (folder / "nan.json").write_text('{"format": NaN}')

    def edited(name: str, edit: Callable[[dict[str, Any]], object]) -> None:
        document = read_json(folder / "graph.json")
        edit(document)
        (folder / name).write_text(json.dumps(document))

    edited("version.json", lambda d: d.update(schema_version=10**9))
    edited("no_name.json", lambda d: d.pop("name"))
    edited("list_name.json", lambda d: d.update(name=["x"]))
    edited("units.json", lambda d: d.update(units=7))
    for column in ("operators", "tensors", "parameters"):
        edited(f"no_{column}.json", partial(_put, column, 1e9))
        edited(f"empty_{column}.json", partial(_put, column, []))
        edited(f"word_{column}.json", partial(_put, column, ["x"]))


def _profiles(folder: Path) -> None:
    """Traces of a profiler, and ONNX models."""
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::relu", "ts": 1, "dur": 1, "args": {}}
    for name, events in (
        ("trace", [event]), ("trace_empty", []), ("trace_nan", [event | {"dur": float("nan")}]),
        ("trace_name", [event | {"name": 3}]), ("trace_args", [event | {"args": [1]}]),
    ):  # fmt: skip
        (folder / f"{name}.json").write_text(json.dumps({"traceEvents": events}))
    product = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
    sizes = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in (("x", ["batch", 4]), ("w", [4, 4]), ("y", None))
    ]
    model = onnx.helper.make_model(onnx.helper.make_graph([product], "m", sizes[:2], sizes[2:]))
    whole = model.SerializeToString()
    (folder / "model.onnx").write_bytes(whole)
    (folder / "truncated.onnx").write_bytes(whole[: len(whole) // 2])


def _put(key: str, value: object, document: dict[str, Any]) -> None:
    document[key] = value


def _plans(folder: Path) -> None:
    def write(name: str, **changes: object) -> None:
        plan = {"kind": "meshwright.plan", "schema_version": 1, "placement": {}, **changes}
        (folder / name).write_text(json.dumps(plan))

    write("plan.json")
    write("plan_kind.json", kind="x")
    write("plan_version.json", schema_version="1")
    write("plan_word.json", placement="all on one")
    write("plan_unknown.json", placement={"nobody": "server0/V100-16GB/0"})
    write("plan_more.json", colour="red")
    write("plan_numbers.json", placement={"op0": 3})
    write("plan_list.json", placement=[1, 2])
    write("plan_order.json", order=5)
    write("plan_bandwidth.json", bandwidth={"x": -1})
    write("plan_weights.json", weights={"x": 0})
    hybrid = PLANS["gpipe"]
    first, *rest = hybrid["stages"]
    names = {**hybrid["problem"], "layers": ["a"] * len(hybrid["problem"]["layers"])}
    for name, changes in (
        ("hybrid", {}), ("hybrid_many", {"micro_batches": 10**9}),
        ("hybrid_devices", {"stages": [{**first, "devices": [[]]}, *rest]}),
        ("hybrid_layers", {"problem": names}),
    ):  # fmt: skip
        (folder / f"{name}.json").write_text(json.dumps({**hybrid, **changes}))


def _checkpoints(folder: Path) -> None:
    """Copies of an exported scheduler, each with one thing wrong; hashes are mended."""
    placer = shutil.copytree(ROOT / "agents/placement/shipped/any_step", folder / "placer_sweeps")
    spec = read_json(placer / "spec.json")
    (placer / "spec.json").write_text(json.dumps({**spec, "sweeps": [[]]}))
    sound = advised(folder / "ck")

    def copy(name: str, edit: Callable[[dict[str, Any]], object] | None = None) -> Path:
        made = folder / name
        shutil.copytree(sound, made)
        if edit is not None:
            spec = read_json(made / "spec.json")
            edit(spec)
            (made / "spec.json").write_text(json.dumps(spec))
        return made

    def config(name: str, edit: Callable[[dict[str, Any]], object]) -> None:
        made = copy(name)
        document = yaml.safe_load((made / "config.yaml").read_text())
        edit(document)
        (made / "config.yaml").write_text(yaml.safe_dump(document))
        spec = read_json(made / "spec.json")
        spec["sha256"] = {n: hashes_of(made)[n] for n in spec["sha256"]}
        (made / "spec.json").write_text(json.dumps(spec))

    copy("ck_kind", lambda s: s.update(kind="x"))
    copy("ck_version", lambda s: s.update(schema_version=2))
    copy("ck_word_version", lambda s: s.update(schema_version="1"))
    copy("ck_hashes", lambda s: s.update(sha256=[]))
    copy("ck_hash", lambda s: s["sha256"].update({"policy.onnx": 7}))
    copy("ck_escape", lambda s: s["sha256"].update({"../six.csv": "0"}))
    copy("ck_types", lambda s: s["model"]["widths"].update(types=10**9))
    copy("ck_word_types", lambda s: s["model"]["widths"].update(types="three"))
    copy("ck_no_types", lambda s: s["model"]["widths"].pop("types"))
    copy("ck_negative_types", lambda s: s["model"]["widths"].update(types=-1))
    copy("ck_widths", lambda s: s["model"].update(widths=[3]))
    copy("ck_model", lambda s: s.update(model=None))
    copy("ck_observation", lambda s: s.update(observation=7))
    copy("ck_no_observation", lambda s: s.pop("observation"))
    copy("ck_field", lambda s: s["observation"].__setitem__(0, "x"))
    copy("ck_shape", lambda s: s["observation"][0].update(shape=10**9))
    copy("ck_huge_shape", lambda s: s["observation"][0].update(shape=[10**12]))
    copy("ck_dtype", lambda s: s["observation"][0].update(dtype="float99"))
    copy("ck_name", lambda s: s["observation"][0].update(name=None))
    copy("ck_optional", lambda s: s["observation"][0].update(optional="no"))
    copy("ck_action", lambda s: s.update(action=3))
    copy("ck_preemption", lambda s: s["action"].update(preemption="yes"))
    copy("ck_observed", lambda s: s.update(observation_kind=["cluster"]))
    copy("ck_folders", lambda s: s.update(folders=["durations"]))
    copy("ck_folder_name", lambda s: s.update(folders={"../durations": {}}))
    copy("ck_expert", lambda s: s.update(adviser=5))
    copy("ck_expert_kind", lambda s: s.update(adviser={"kind": "nobody"}))
    copy("ck_gain", lambda s: s["adviser"].update(gain="much"))
    (copy("ck_no_onnx") / "policy.onnx").unlink()
    (copy("ck_empty_onnx") / "policy.onnx").write_bytes(b"")
    (copy("ck_no_spec") / "spec.json").unlink()
    (copy("ck_empty_spec") / "spec.json").write_bytes(b"")
    (copy("ck_binary_spec") / "spec.json").write_bytes(bytes(range(256)))
    (copy("ck_deep_spec") / "spec.json").write_text(DEEP)
    (copy("ck_list_spec") / "spec.json").write_text("[1]")
    made = copy("ck_spec_folder")
    (made / "spec.json").unlink()
    (made / "spec.json").mkdir()
    made = copy("ck_spec_zero")
    (made / "spec.json").unlink()
    (made / "spec.json").symlink_to("/dev/zero")
    config("ck_no_env", lambda c: c.pop("env"))
    config("ck_env", lambda c: c.update(env="x"))
    config("ck_order", lambda c: c["env"]["observation"].update(order="by_name"))
    config("ck_known", lambda c: c["env"]["observation"].update(known_durations="perhaps"))
    config("ck_actions", lambda c: c["env"].update(actions=[]))


def _runs(folder: Path) -> None:
    """Run folders of runs that never were."""
    for name, content in (
        ("run_empty", ""), ("run_list", "[1]"), ("run_bomb", YAMLS["bomb.yaml"]),
        ("run_other", "seed: 0\njson: false\n"), ("run_binary", "\0\1\2"),
        ("run_word_seed", "seed: many\n"),
    ):  # fmt: skip
        (folder / name).mkdir()
        (folder / name / "config.yaml").write_text(content)
    (folder / "cluster.yaml").write_text(topology_text("t4_pcie"))
    shutil.copy(CONF / "workload" / "itp.yaml", folder / "itp.yaml")
    (folder / "listed").mkdir()
    (folder / "listed" / "dataset.json").write_text("[]")
    (folder / "somebody" / "0").mkdir(parents=True)
    (folder / "somebody" / "0" / "thesis.txt").write_text("years of work")
