"""Damaged files are read or refused in one line, quickly, and nothing outside is touched."""

from __future__ import annotations

import json
import random
import shutil
import time
import traceback
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agents.cluster.checkpoint import CheckpointScheduler
from agents.cluster.migrating.learned_priority import NAMES, WEIGHTS_KIND, read_weights
from agents.cluster.shipped import scheduler_folder
from envs.cluster.environment.routing import MixedRacks, QueueRouting
from envs.cluster.interference.gavel import read_gavel
from envs.cluster.workload.parquet import write_parquet
from envs.cluster.workload.readers.canonical import CanonicalReader
from envs.cluster.workload.readers.job_logs import HeliosReader, ItpReader, PhillyReader
from envs.cluster.workload.readers.kubernetes import KaiReader, VolcanoReader
from envs.cluster.workload.readers.openb import OpenbReader, read_openb_nodes
from envs.cluster.workload.readers.philly_json import PhillyJsonReader
from envs.cluster.workload.readers.slurm import SlurmReader
from envs.cluster.workload.trace import Trace
from envs.cost import CostByGraph
from envs.errors import InputError
from envs.files import read_json
from envs.graphs.readers import read_graph_file
from envs.graphs.storage import load_graph, save_graph
from envs.network.flow_file import read_flow_file
from envs.step.allocated import uniform_allocation
from envs.step.order import OneFOneB
from envs.step.plans import PairWeights, Placement, Plan
from envs.step.problem import StepProblem
from experiments.cluster.evaluate_cluster import EvaluateClusterConfig, evaluate_cluster
from experiments.command_line import run_job
from experiments.config.composing import check_command_line
from experiments.run.faults import fault_of as fault_of_run
from experiments.run.provenance import Provenance
from experiments.step.evaluate_step import EvaluateConfig, evaluate_step
from experiments.step.plan_file import read_allocation, read_bandwidth, read_plan, write_plan
from experiments.step.problem import topology_file
from models.artifacts import sha256_of
from models.durations.bins import read_durations
from tests import strength
from tests.agents.cluster.exported_schedulers import advised
from tests.envs.topologies import topology_named, topology_text
from tests.experiments.layered_step import layered_step
from tests.proof import fuzzing

SECONDS = 5.0  # of a processor, for a case at most
SHIPPED = "unknown_durations"

DNN_PARTITIONING: dict[str, Any] = {
    "maxSizePerFPGA": 1e9, "maxFPGAs": 2, "maxCPUs": 1,
    "nodes": [
        {
            "id": number, "name": f"node{number}", "supportedOnFpga": 1, "cpuLatency": 4.0,
            "fpgaLatency": 2.0, "isBackwardNode": 0, "colorClass": number, "size": 1e6,
        }
        for number in range(3)
    ],
    "edges": [
        {"sourceId": 0, "destId": 1, "cost": 1.0, "size": 8.0},
        {"sourceId": 1, "destId": 2, "cost": 2.0, "size": 8.0},
    ],
}  # fmt: skip
PIPEDREAM = (
    "node1 -- Input -- forward_compute_time=5.0, backward_compute_time=7.0, "
    "activation_size=8.0, parameter_size=0.0\n"
    "node2 -- Linear -- forward_compute_time=5.0, backward_compute_time=7.0, "
    "activation_size=8.0, parameter_size=4.0\n\tnode1 -- node2\n"
)
CSVS: dict[str, tuple[str, Any]] = {
    "canonical.csv": (
        "job_id,submit_s,duration_s,num_gpus,gpu_milli,user,queue,gpu_type,model\n"
        "a,0,50,4,1000,u,q,V100,resnet50\nb,5,60,1,500,v,q,,\nc,9,10,2,1000,,,V100|P100,x\n",
        CanonicalReader(),
    ),
    "itp.csv": (
        "job_id,submission_time,duration,num_gpu\na,1,600,4\nb,2,50,1\nc,7,9,8\n", ItpReader(),
    ),
    "philly.csv": (
        "timestamp,duration,num_gpus,gpu_time,cluster\n"
        "2017-10-03 01:02:03,60,2,120,vc1\n2017-10-03 01:02:09,70,1,70,vc2\n",
        PhillyReader(),
    ),
    "helios.csv": (
        "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,"
        "queue\n1,u,v,4,8,1,COMPLETED,2020-04-01 00:00:00,2020-04-01 00:00:05,"
        "2020-04-01 00:01:05,60,5\n2,u,v,1,8,1,FAILED,2020-04-02 00:00:00,2020-04-02 00:00:05,"
        "2020-04-02 00:01:05,60,5\n",
        HeliosReader(),
    ),
    "pods.csv": (
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,"
        "deletion_time,scheduled_time\np1,1000,2048,1,500,V100,LS,Succeeded,0,50,5\n"
        "p2,1000,2048,2,1000,,LS,Succeeded,3,60,9\n",
        OpenbReader(),
    ),
}  # fmt: skip
PHILLY_JSON = [
    {
        "status": "Pass", "vc": "a", "jobid": f"j{number}", "user": "u",
        "submitted_time": "2017-10-09 07:01:55",
        "attempts": [
            {
                "start_time": "2017-10-09 07:02:00", "end_time": "2017-10-09 08:02:00",
                "detail": [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}],
            }
        ],
    }
    for number in range(2)
]  # fmt: skip
SLURM_JSON = {
    "jobs": [
        {
            "job_id": number, "array": {"job_id": 4, "task_id": {"set": True, "number": number}},
            "user": "u", "partition": "p", "state": {"current": ["COMPLETED"]},
            "time": {"submission": 100, "start": 110, "end": 120, "elapsed": 10},
            "tres": {"allocated": [{"type": "gres", "name": "gpu", "count": 2}], "requested": []},
        }
        for number in range(2)
    ]
}  # fmt: skip
POD_SPEC = {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "2", "cpu": "500m"}}}]}
TIME = "2026-03-01T10:00:0{}Z"
ENDED = TIME.format(9)
VOLCANO = {
    "items": [
        {
            "apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job",
            "metadata": {"name": "j", "namespace": "n", "creationTimestamp": TIME.format(0)},
            "spec": {"queue": "q", "tasks": [{"replicas": 2, "template": {"spec": POD_SPEC}}]},
            "status": {
                "state": {"phase": "Completed"},
                "conditions": [
                    {"status": "Running", "lastTransitionTime": TIME.format(1)},
                    {"status": "Completed", "lastTransitionTime": ENDED},
                ],
            },
        }
    ]
}  # fmt: skip
KAI = {
    "rawObjects": {
        "podGroups": [
            {
                "metadata": {"name": "g", "namespace": "n", "creationTimestamp": TIME.format(0)},
                "spec": {"queue": "q"},
            }
        ],
        "pods": [
            {
                "metadata": {
                    "namespace": "n",
                    "annotations": {"pod-group-name": "g", "gpu-fraction": "0.5"},
                },
                "spec": POD_SPEC,
                "status": {
                    "phase": "Succeeded", "startTime": TIME.format(1),
                    "containerStatuses": [{"state": {"terminated": {"finishedAt": ENDED}}}],
                },
            }
        ],
    }
}  # fmt: skip
GAVEL = {"v100": {"('ResNet-18 (batch size 16)', 1)": {"null": 12.0}}}
FLOWS = "shard,arrival_ns,size_bytes,src,dst,n_hosts\n0,0,1000,0,1,3\n0,10,5000,1,2,3\n"
WEIGHTS = {"kind": WEIGHTS_KIND, "weights": dict.fromkeys(NAMES, 1.0)}


@dataclass(frozen=True)
class Target:
    """A file, how it is damaged, and who reads it."""

    file: Path  # its name in a case's folder is that of its last part
    damage: fuzzing.Bytes
    read: Callable[[Path], object]
    weight: int = 1


def checkpoint(folder: Path) -> object:
    """Everything that is read of a checkpoint before it decides."""
    return CheckpointScheduler(str(folder), 8, 1, MixedRacks(), QueueRouting(), 0, 0.0, 0)


def in_folder(sound: Path, name: str, *, sealed: bool) -> Callable[[Path], object]:
    """A reader of a checkpoint with the damaged file in it.

    Not `sealed`: its hash is made to fit, as by somebody who wants the file to be read.
    """

    def read(path: Path) -> object:
        folder = path.parent / "checkpoint"
        for file in sound.rglob("*"):
            at = folder / file.relative_to(sound)
            at.parent.mkdir(parents=True, exist_ok=True)
            if file.name == "spec.json":
                shutil.copy(file, at)
            elif file.is_file() and at != folder / name:
                at.symlink_to(file)
        shutil.copy(path, folder / name)
        if not sealed:
            part, file = folder / Path(name).parent, Path(name).name
            spec = read_json(part / "spec.json")
            spec["sha256"][file] = sha256_of(folder / name)
            (part / "spec.json").write_text(json.dumps(spec))
            if part != folder:
                whole = read_json(folder / "spec.json")
                listed = whole["folders"][part.name]
                whole["folders"][part.name] = {f: sha256_of(part / f) for f in listed}
                (folder / "spec.json").write_text(json.dumps(whole))
        return read_durations(folder / "durations") if "/" in name else checkpoint(folder)

    return read


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Target]:
    samples = tmp_path_factory.mktemp("samples")
    graph = layered_step(3, 2)
    for suffix in (".npz", ".json", ".json.gz"):
        save_graph(graph, samples / f"graph{suffix}")
    (samples / "topology.yaml").write_text(topology_text("mixed_v100_p100"))
    problem = StepProblem.build(graph, topology_named("mixed_v100_p100"), CostByGraph())
    network = problem.topology.network
    device = np.zeros(graph.num_operators, np.int64)
    plan = Plan(Placement(device), OneFOneB()(graph, device))
    write_plan(samples / "plan.json", plan, problem, Provenance(seed=0))
    allocation = uniform_allocation(network)
    write_plan(samples / "shared.json", plan, problem, Provenance(seed=0), allocation)
    weights = PairWeights.fair(problem.topology.num_devices)
    weights.weight[:] = 3
    write_plan(samples / "weighed.json", plan, problem, Provenance(seed=0), weights)
    write_parquet(Trace.of("t", [0, 5, 9], [9, 8, 7], [1, 2, 4]), samples / "trace.parquet")
    texts = {
        "dnn.json": json.dumps(DNN_PARTITIONING), "pipedream.txt": PIPEDREAM,
        "philly.json": json.dumps(PHILLY_JSON), "slurm.json": json.dumps(SLURM_JSON),
        "volcano.json": json.dumps(VOLCANO), "kai.json": json.dumps(KAI),
        "gavel.json": json.dumps(GAVEL), "flows.csv": FLOWS, "weights.json": json.dumps(WEIGHTS),
        "nodes.csv": "sn,cpu_milli,memory_mib,gpu,model\nn1,96000,1000,8,V100\nn2,9,9,0,\n",
        **{name: text for name, (text, _) in CSVS.items()},
    }  # fmt: skip
    for name, text in texts.items():
        (samples / name).write_text(text)
    with zipfile.ZipFile(samples / "kai.zip", "w") as archive:
        archive.writestr("snapshot.json", texts["kai.json"])
    folder, advised_by = scheduler_folder(SHIPPED), advised(samples / "checkpoint")

    def lenient(reader: Any) -> Callable[[Path], object]:
        return lambda path: (reader.read(path, False), reader.read(path, True))

    json_, yaml_, csv_ = fuzzing.damaged_json, fuzzing.damaged_yaml, fuzzing.damaged_csv
    found = {
        "graph.npz": Target(samples / "graph.npz", fuzzing.damaged_npz, read_graph_file, 4),
        "graph.json": Target(samples / "graph.json", json_, load_graph, 6),
        "graph.json.gz": Target(samples / "graph.json.gz", fuzzing.damaged_bytes, read_graph_file),
        "dnn.json": Target(samples / "dnn.json", json_, read_graph_file, 4),
        "pipedream": Target(samples / "pipedream.txt", fuzzing.damaged_bytes, read_graph_file, 2),
        "plan": Target(
            samples / "plan.json", json_, lambda path: read_plan(path, problem, OneFOneB()), 4
        ),
        "bandwidth": Target(
            samples / "shared.json", json_, lambda path: read_bandwidth(path, network), 2
        ),
        "weighed plan": Target(
            samples / "weighed.json", json_, lambda x: read_allocation(x, problem.topology), 2
        ),
        "topology": Target(
            samples / "topology.yaml", yaml_, lambda p: topology_file(str(p)), 4
        ),
        "parquet": Target(
            samples / "trace.parquet", fuzzing.damaged_parquet, lenient(CanonicalReader()), 4
        ),
        "philly.json": Target(samples / "philly.json", json_, lenient(PhillyJsonReader()), 2),
        "slurm.json": Target(samples / "slurm.json", json_, lenient(SlurmReader()), 2),
        "volcano.json": Target(samples / "volcano.json", json_, lenient(VolcanoReader()), 2),
        "kai.json": Target(samples / "kai.json", json_, lenient(KaiReader()), 2),
        "kai.zip": Target(samples / "kai.zip", fuzzing.damaged_bytes, lenient(KaiReader()), 2),
        "nodes": Target(samples / "nodes.csv", csv_, read_openb_nodes),
        "pods": Target(samples / "pods.csv", csv_, OpenbReader().read_requests),
        "gavel": Target(samples / "gavel.json", json_, read_gavel, 2),
        "flows": Target(samples / "flows.csv", csv_, read_flow_file, 2),
        "weights": Target(samples / "weights.json", json_, read_weights),
        "spec": Target(folder / "spec.json", json_, in_folder(folder, "spec.json", sealed=True), 4),
        "network's spec": Target(
            advised_by / "spec.json", json_, in_folder(advised_by, "spec.json", sealed=True), 4
        ),
        "config": Target(
            advised_by / "config.yaml", yaml_, in_folder(advised_by, "config.yaml", sealed=False)
        ),
        "onnx": Target(
            advised_by / "policy.onnx", fuzzing.damaged_bytes,
            in_folder(advised_by, "policy.onnx", sealed=False),
        ),
        "sealed onnx": Target(
            advised_by / "policy.onnx", fuzzing.damaged_bytes,
            in_folder(advised_by, "policy.onnx", sealed=True),
        ),
        "posterior": Target(
            folder / "durations" / "spec.json", json_,
            in_folder(folder, "durations/spec.json", sealed=True), 2,
        ),
        "posterior's weights": Target(
            folder / "durations" / "durations.safetensors", fuzzing.damaged_bytes,
            in_folder(folder, "durations/durations.safetensors", sealed=False), 2,
        ),
    }  # fmt: skip
    for name, (_, reader) in CSVS.items():
        found[name] = Target(samples / name, csv_, lenient(reader), 3)
    return found


@pytest.fixture(scope="module")
def watch() -> fuzzing.Watch:
    return fuzzing.Watch()


Case = Callable[[], object]


def fault_of(case: Case, watch: fuzzing.Watch, folder: Path) -> str | None:
    """What is wrong with how a case ends; None: it is read, or refused in one line."""
    start = time.process_time()
    fault = None
    with watch.over(folder):
        try:
            case()
        except InputError as error:
            if not str(error).strip():
                fault = "refused without a word"
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)[-3:]
            places = " <- ".join(f"{Path(f.filename).name}:{f.lineno}" for f in reversed(frames))
            fault = f"{type(error).__name__}: {str(error)[:160]} [{places}]"
    if watch.touched:
        fault = f"touched {watch.touched[:3]}"
        watch.touched.clear()
    if time.process_time() - start > SECONDS:
        fault = f"took {time.process_time() - start:.0f} s"
    return fault


def report(faults: dict[str, list[str]]) -> str:
    """One line for each different fault, with the case that shows it."""
    return "\n".join(f"{len(where)} x {fault}: {where[0]}" for fault, where in faults.items())


def test_damaged_files(targets: dict[str, Target], watch: fuzzing.Watch, tmp_path: Path) -> None:
    """Every seed is a case of its own: `random.Random("<target> <number>")`."""
    cases = strength.trials(10_000, daily=60)
    names = [name for name, target in targets.items() for _ in range(target.weight)]
    contents = {name: target.file.read_bytes() for name, target in targets.items()}
    faults: dict[str, list[str]] = {}
    for number in range(cases):
        name = names[number % len(names)]
        target, rng = targets[name], random.Random(f"{name} {number}")
        folder = tmp_path / str(number)
        folder.mkdir()
        path = folder / target.file.name
        content = contents[name]
        if rng.randrange(50) == 0:
            content = contents[rng.choice(list(contents))]  # a file of another kind
        path.write_bytes(target.damage(content, rng) if content is contents[name] else content)
        fault = fault_of(lambda path=path, target=target: target.read(path), watch, folder)
        if fault is not None:
            faults.setdefault(fault, []).append(f"{name} {number}")
        shutil.rmtree(folder)
    assert not faults, report(faults)


def test_undamaged_files_are_read(targets: dict[str, Target], tmp_path: Path) -> None:
    """Or a damaged one would be refused for what is wrong with the sample."""
    for name, target in targets.items():
        folder = tmp_path / name.replace(" ", "_")
        folder.mkdir()
        path = Path(shutil.copy(target.file, folder))
        try:
            target.read(path)
        except InputError as error:
            pytest.fail(f"{name}: {error}")


WORDS = (
    "agent=heft", "agent=nobody", "graph=graph.json", "graph=bert_base", "topology=single_v100",
    "topology=../../etc", "budget_s=1", "budget_s=-1", "budget_s=1e999", "budget_s=nan", "seed=0",
    "seed=-1", "seed=99999999999999999999", "json=true", "json=3", "hydra.run.dir=",
    "cost=roofline",
    "+x=1", "~agent", "agent.seed=a", "env=placement", "env=../x", "graph.path=a\0b", "a.b.c=1",
    "trace.path=/dev/null", "trace.path=jobs.csv", "trace.head=0", "cluster.nodes=0",
    "trace.load=0",
    "cluster.gpu_types=[]", "cluster.gpu_types=[a,a]", "overheads.restart_s=-1", "placement=nobody",
    "agent=${seed}", "graph=${graph}", "=", "x", "seed={a:1}", "seed=[", "json=", "agent=[a,b]",
)  # fmt: skip


def damaged_word(rng: random.Random) -> str:
    word = rng.choice(WORDS)
    if rng.randrange(2):
        text = fuzzing.damaged_bytes(word.encode(), rng).decode("utf-8", "replace")
        word = text.lstrip("-").replace("\0", "")[:200]
    return word


APPS: dict[str, tuple[str, Any, Any]] = {
    "evaluate": ("evaluate", EvaluateConfig, evaluate_step),
    "evaluate_cluster": ("evaluate_cluster", EvaluateClusterConfig, evaluate_cluster),
}


def test_damaged_command_lines(watch: fuzzing.Watch, tmp_path: Path) -> None:
    cases = strength.trials(400, daily=2)
    faults: dict[str, list[str]] = {}
    for number in range(cases):
        rng = random.Random(f"words {number}")
        name = rng.choice(list(APPS))
        config, schema, _ = APPS[name]
        words = [damaged_word(rng) for _ in range(rng.choice((1, 1, 2, 3)))]

        def case(words: list[str] = words, config: str = config, schema: Any = schema) -> object:
            try:
                return check_command_line(words, config, schema)
            except OSError as error:  # which every app tells in one line
                raise fault_of_run(error) or error from error

        fault = fault_of(case, watch, tmp_path)
        if fault is not None:
            faults.setdefault(fault, []).append(f"{name} {words}")
    assert not faults, report(faults)


@pytest.mark.proof
def test_damaged_files_in_whole_runs(
    targets: dict[str, Target],
    watch: fuzzing.Watch,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in the apps: exit code 0 or 2, and nothing outside of the run folder."""
    monkeypatch.chdir(tmp_path)
    faults: dict[str, list[str]] = {}
    run = ["json=true"]
    for app in APPS:  # kernels are compiled once, in no case's time
        own = [f"graph={targets['graph.json'].file}"] if app == "evaluate" else []
        assert run_job(app, [*own, *run, "hydra.run.dir=first"]) == 0
        shutil.rmtree("first")
    for number in range(strength.trials(200)):
        rng = random.Random(f"run {number}")
        name = rng.choice(("graph.json", "canonical.csv", "topology", "dnn.json", "parquet"))
        target = targets[name]
        folder = tmp_path / "case"
        folder.mkdir()
        path = folder / target.file.name
        path.write_bytes(target.damage(target.file.read_bytes(), rng))
        if name in {"canonical.csv", "parquet"}:
            app, words = "evaluate_cluster", ["agent=fifo", f"trace.path={path}"]
        elif name == "topology":
            app, words = "evaluate", ["agent=single_device", f"topology={path}"]
            words.append(f"graph={targets['graph.json'].file}")
        else:
            app, words = "evaluate", ["agent=single_device", f"graph={path}"]
            words.append("topology=mixed_v100_p100")
        words += [*run, f"hydra.run.dir={folder / 'run'}"]

        def case(app: str = app, words: list[str] = words) -> object:
            code = run_job(app, words)
            if code not in (0, 2):
                raise AssertionError(f"exit code {code}")
            return code

        fault = fault_of(case, watch, folder)
        if fault is not None:
            faults.setdefault(fault, []).append(f"{app} {name} {number}")
        shutil.rmtree(folder)
    assert not faults, report(faults)
