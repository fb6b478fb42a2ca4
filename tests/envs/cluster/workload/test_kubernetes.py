"""Jobs of Volcano and KAI, on objects written by hand."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from random_traces import holds, left_out, refuses_the_second, table

from envs.cluster.workload.readers.kubernetes import KaiReader, VolcanoReader
from tests.refusal import refusal

Object = dict[str, Any]


def at(minute: int, second: int = 0) -> str:
    return f"2026-03-01T10:{minute:02d}:{second:02d}Z"


def spec(gpus: int | str, **more: Any) -> Object:
    """Of pods whose GPUs stand among the limits alone."""
    resources = {
        "requests": {"cpu": "1500m", "memory": "2Gi"},
        "limits": {"cpu": "9", "nvidia.com/gpu": gpus},
    }
    return {"containers": [{"resources": resources}, {"name": "sidecar"}], **more}


def vcjob(name: str, phase: str, conditions: list[tuple[str, int]], gpus: int | str = 4) -> Object:
    tasks = [
        {"name": "worker", "replicas": 2, "template": {"spec": spec(gpus)}},
        {"name": "launcher", "template": {"spec": spec(gpus)}},
    ]
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job",
        "metadata": {"name": name, "namespace": "team", "creationTimestamp": at(0)},
        "spec": {"minAvailable": 2, "queue": "research", "tasks": tasks},
        "status": {
            "state": {"phase": phase}, "runningDuration": "59m1s",
            "conditions": [{"status": x, "lastTransitionTime": at(m)} for x, m in conditions],
        },
    }  # fmt: skip


def group(name: str, minute: int = 0, owner: str = "apps/v1") -> Object:
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup",
        "metadata": {
            "name": name, "namespace": "team", "creationTimestamp": at(minute),
            "ownerReferences": [{"apiVersion": owner, "kind": "Job"}],
        },
        "spec": {"minMember": 1, "queue": "gold"},
    }  # fmt: skip


def pod(
    of: str, start: int, end: int | None, gpus: int | str = 2, key: str = "pod-group-name",
    **annotations: str,
) -> Object:  # fmt: skip
    state = {"running": {}} if end is None else {"terminated": {"finishedAt": at(end)}}
    annotations = {key: of} | {x.replace("_", "-"): value for x, value in annotations.items()}
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": f"{of}-{start}", "namespace": "team", "annotations": annotations},
        "spec": spec(gpus, nodeSelector={"nvidia.com/gpu.product": "A100"}),
        "status": {
            "phase": "Running" if end is None else "Failed", "startTime": at(start),
            "containerStatuses": [{"state": state}],
        },
    }  # fmt: skip


FIELDS = "job_id submit_s duration_s num_gpus gpu_milli cpu_milli memory_mib user queue gpu_type"
RAN = [("Pending", 0), ("Running", 1), ("Completing", 3), ("Completed", 4)]


def written(path: Path, *items: object) -> Path:
    return table(path, json.dumps({"kind": "List", "apiVersion": "v1", "items": items}))


def test_volcano(tmp_path: Path) -> None:
    again = [("Running", 1), ("Restarting", 3), ("Pending", 5), ("Running", 10), ("Failed", 20)]
    path = written(
        tmp_path / "list.json",
        pod("native", 12, 20, key="scheduling.k8s.io/group-name"),
        vcjob("ran", "Completed", RAN),
        vcjob("again", "Failed", again, "1"),
        vcjob("runs", "Running", RAN[:2]),
        vcjob("early", "Aborted", [("Pending", 0), ("Aborted", 9)]),
        vcjob("cpu", "Completed", RAN, 0),
        group("ran-1", owner="batch.volcano.sh/v1alpha1"),
        group("native", 10),
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "other"}},
    )
    found = VolcanoReader().read(path)
    holds(
        found.trace,
        f"""{FIELDS}
            team/again  0   720 2 1000 3000 4096 team research None
            team/ran    0   120 8 1000 3000 4096 team research None
            team/native 600 480 2 1000 1500 2048 team gold     A100""",
    )
    assert left_out(found) == [
        "no job: 1 from entry 4: status.state.phase is of a job that had not ended",
        "no job: 1 from entry 5: status took no second: the job never ran",
        "no job: 1 from entry 6: nvidia.com/gpu is not asked for: a job without GPU",
    ]


def changed(job: Object, path: str, value: object) -> Object:
    job = json.loads(json.dumps(job))
    *way, last = path.split(".")
    node: Any = job
    for key in way:
        node = node[int(key) if key.isdigit() else key]
    node[last] = value
    return job


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("metadata.creationTimestamp", "2026-03-01T10:00:00", "metadata.creationTimestamp.: is no"),
        ("metadata.creationTimestamp", None, "metadata.creationTimestamp.: is no time"),
        ("metadata.name", None, "field 'metadata.name': is missing"),
        ("metadata.name", "ran", "field 'metadata.name': 'team/ran' stands twice"),
        ("status.conditions", 7, "field 'status.conditions': is no list"),
        ("status.conditions.2.lastTransitionTime", at(0), "status.conditions.: are not in the ord"),
        ("spec.tasks.0.replicas", -1, "field 'replicas': is no whole number"),
        ("spec.tasks.0.replicas", 10**10, "field 'nvidia.com/gpu': is too large"),
        ("spec.tasks.0.template.spec", spec("1e99"), "field 'nvidia.com/gpu': is too large"),
        ("spec.tasks.0.template.spec", spec("250m"), "nvidia.com/gpu': is not a whole number"),
        ("spec.tasks.0.template.spec", spec("two"), "field 'nvidia.com/gpu': is no amount"),
    ],
)
def test_a_faulty_job(path: str, value: object, message: str, tmp_path: Path) -> None:
    sound = vcjob("ran", "Completed", RAN)
    bad = changed(vcjob("bad", "Completed", RAN), path, value)
    file = written(tmp_path / "list.json", sound, {}, bad)
    refuses_the_second(VolcanoReader(), file, f"^{file}: record entry 3: .*{message}")


PODS = [
    pod("gang", 1, 9), pod("gang", 2, 8), pod("gang", 9, 11),  # the third replaces the first
    pod("part", 1, 2, 0, gpu_fraction="0.25"),
    pod("parts", 1, 2, 0, gpu_fraction="0.5", gpu_fraction_num_devices="2"),
    pod("mixed", 1, 2, 0, gpu_fraction="0.5"), pod("mixed", 1, 2),
    pod("memory", 1, 2, 0, gpu_memory="2000"),
    pod("runs", 1, 2), pod("runs", 1, None),
    {"metadata": {"name": "alone", "namespace": "team"}},
]  # fmt: skip
GROUPS = [group(name) for name in ("gang", "part", "parts", "mixed", "memory", "runs", "gone")]


def snapshot(groups: list[Object] = GROUPS, pods: object = PODS) -> bytes:
    return json.dumps({"config": {}, "rawObjects": {"podGroups": groups, "pods": pods}}).encode()


def zipped(name: str = "snapshot.json", method: int = zipfile.ZIP_DEFLATED) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", method) as archive:
        archive.writestr(name, snapshot())
    return content.getvalue()


@pytest.mark.parametrize("content", [zipped(), zipped(method=zipfile.ZIP_STORED), snapshot()])
def test_kai(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "snapshot.zip"
    path.write_bytes(content)
    found = KaiReader().read(path)
    holds(
        found.trace,
        f"""{FIELDS}
            team/gang 0 600 4 1000 3000 4096 team gold A100
            team/part 0 60  1 250  1500 2048 team gold A100""",
    )
    assert left_out(found) == [
        "no job: 2 from entry 3: gpu-fraction is a fraction of several GPUs",
        "no job: 1 from entry 5: gpu-memory is no part of a GPU",
        "no job: 1 from entry 6: status.phase is of a pod that had not ended",
        "no job: 1 from entry 7: pods are gone: no duration",
    ]
    assert [x.name for x in tmp_path.iterdir()] == ["snapshot.zip"]


def shorter(content: bytes) -> bytes:
    """A zip that says less of the size of what is in it."""
    size = len(snapshot())
    return content.replace(size.to_bytes(4, "little"), (size - 1).to_bytes(4, "little"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (zipped("../snapshot.json"), "field 'snapshot.json': is not in the zip"),
        (zipped(method=zipfile.ZIP_LZMA), "unusual way"),
        (zipped()[:-9], "no sound zip"),
        (shorter(zipped()), "no sound zip"),
        (b"{}", "field 'rawObjects': has no lists"),
        (snapshot([]), "holds no job"),
        (snapshot([group("gone")], None), "no row is a job on GPUs .pods are gone"),
        (snapshot([group("x")], [pod("x", 1, 2, gpu_fraction="1.5")]), "gpu-fraction.: is not bet"),
        (snapshot([group("x")], [pod("x", 5, 2)]), "entry 1: field 'finishedAt': is before start"),
    ],
)
def test_snapshots_that_are_none(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "snapshot.zip"
    path.write_bytes(content)
    with refusal(message):
        KaiReader().read(path)


def test_a_zip_is_unpacked_within_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    where = "envs.cluster.workload.readers.kubernetes.require_memory"
    note: Callable[..., None] = lambda size, *_, **__: asked.append(size)  # noqa: E731
    monkeypatch.setattr(where, note)
    path = tmp_path / "snapshot.zip"
    path.write_bytes(zipped())
    KaiReader().read(path)
    assert asked == [4 * len(snapshot())]
