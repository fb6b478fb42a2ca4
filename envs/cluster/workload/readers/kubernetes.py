"""Readers of jobs on Kubernetes: Volcano's, and those of a snapshot of NVIDIA's KAI Scheduler.

Written from the types that both projects publish, github.com/volcano-sh/apis (`batch.volcano.sh`,
`scheduling.volcano.sh`) and github.com/NVIDIA/KAI-Scheduler (`scheduling.run.ai`,
`pkg/scheduler/plugins/snapshot`), and tested on objects written by hand.

A cluster forgets objects that are deleted and says no durations of jobs that still run or wait:
these are excluded. The namespace is the user. GPUs are `nvidia.com/gpu`, permitted types the values
of a node selector `nvidia.com/gpu.product`.
"""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from envs.cluster.workload.readers.entries import EXCLUDED, EntryError, entry_trace
from envs.cluster.workload.readers.read_trace import ReadTrace
from envs.cluster.workload.trace import WHOLE_GPU
from envs.errors import InputError
from envs.files import PARSED, parse_json, read_content, read_json
from envs.memory import require_memory

GPU = "nvidia.com/gpu"
PRODUCT = "nvidia.com/gpu.product"
FRACTION, DEVICES, MEMORY = "gpu-fraction", "gpu-fraction-num-devices", "gpu-memory"
GROUP_NAMES = ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")
KAI_GROUP_NAMES = ("pod-group-name",)
JOBS, GROUPS = "batch.volcano.sh", "scheduling.volcano.sh"
ENDED = ("Completed", "Failed", "Aborted", "Terminated")  # phases of Volcano's jobs
FINISHED = ("Succeeded", "Failed")  # phases of pods
SNAPSHOT = "snapshot.json"
FIELDS = {
    "job_id": "metadata.name", "submit_s": "metadata.creationTimestamp", "duration_s": "status",
    "num_gpus": GPU, "gpu_milli": FRACTION, "cpu_milli": "cpu", "memory_mib": "memory",
    "user": "metadata.namespace", "queue": "spec.queue", "gpu_type": PRODUCT,
}  # fmt: skip
QUANTITY = re.compile(r"(\d*\.?\d+|\d+\.)([eE][+-]?\d{1,3}|[mkMGTPE]|[KMGTPE]i)?")
SCALES = {"m": 1e-3, "k": 1e3} | {
    letter + "i" * binary: (1024.0 if binary else 1000.0) ** power
    for power, letter in enumerate("KMGTPE", 1)
    for binary in (False, True)
}
MIB = 2**20


class VolcanoReader:
    """The List that `kubectl get vcjob,podgroups,pods -A -o json` prints.

    A job of Volcano is a gang of all replicas of its tasks. Its duration is the time between
    `Running` and the next of `status.conditions` (`runningDuration` counts the wait, too). A
    PodGroup without a job of Volcano is read as `KaiReader` reads one.
    """

    def read(self, path: str | Path, strict: bool = True) -> ReadTrace:
        """The trace in `path`; with `strict` the first faulty job raises InputError."""
        items = _get(read_json(path), "items")
        if not isinstance(items, list):
            raise InputError("is no List of objects of Kubernetes", file=path)
        pods = _by_group((item for item in items if _kind(item) == "Pod"), GROUP_NAMES)

        def read(item: object) -> Mapping[str, Any]:
            return _job(item) if _kind(item) == "Job" else _group(item, pods)

        jobs = {
            place: item
            for place, item in enumerate(items)
            if _kind(item) == "Job" or _is_own_group(item)
        }
        return entry_trace(path, [*jobs.values()], read, FIELDS, [*jobs], strict=strict)


class KaiReader:
    """What the snapshot plugin returns, a zip with one `snapshot.json`, or that file.

    A PodGroup is a gang of the most GPUs that its pods held at once, from the start of the first to
    the end of the last. One pod may ask for a `gpu-fraction` of one GPU; excluded are fractions of
    several, and amounts of memory of a GPU.
    """

    def read(self, path: str | Path, strict: bool = True) -> ReadTrace:
        """The trace in `path`; with `strict` the first faulty group raises InputError."""
        content = read_content(path)
        document = parse_json(_unzipped(content, path) if content[:2] == b"PK" else content, path)
        groups, pods = (_get(document, "rawObjects", key) for key in ("podGroups", "pods"))
        if not isinstance(groups, list) or not isinstance(pods or [], list):
            raise InputError("has no lists podGroups and pods", file=path, field="rawObjects")
        by_group = _by_group(pods or [], KAI_GROUP_NAMES)
        return entry_trace(path, groups, lambda x: _group(x, by_group), FIELDS, strict=strict)


def _unzipped(content: bytes, path: str | Path) -> bytes:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            member = archive.getinfo(SNAPSHOT)
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise InputError("is packed in an unusual way", file=path, field=SNAPSHOT)
            require_memory(PARSED * member.file_size, "what is in it, decompressed,", file=path)
            return archive.read(member)
    except KeyError as error:
        raise InputError("is not in the zip", file=path, field=SNAPSHOT) from error
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError) as error:
        raise InputError(f"is no sound zip ({error})", file=path) from error


def _get(node: object, *path: str) -> Any:
    for key in path:
        node = node.get(key) if isinstance(node, Mapping) else None
    return node


def _items(node: object, *path: str) -> list[Any]:
    items = _get(node, *path)
    if items is None:
        return []
    if not isinstance(items, list):
        raise EntryError(".".join(path), "is no list")
    return items


def _kind(item: object) -> str | None:
    """`Pod`, or `Job` or `PodGroup` of Volcano."""
    kind, version = (str(_get(item, key)) for key in ("kind", "apiVersion"))
    of = {"Pod": "v1", "Job": JOBS, "PodGroup": GROUPS}.get(kind)
    return kind if of is not None and version.partition("/")[0] == of else None


def _is_own_group(item: object) -> bool:
    owners = _get(item, "metadata", "ownerReferences")
    owned = any(
        str(_get(owner, "apiVersion")).startswith(JOBS)
        for owner in (owners if isinstance(owners, list) else ())
    )
    return _kind(item) == "PodGroup" and not owned


def _by_group(
    pods: Iterable[object], names: Iterable[str]
) -> Mapping[tuple[object, object], list[object]]:
    """Pods by the namespace and name of their group."""
    found: defaultdict[tuple[object, object], list[object]] = defaultdict(list)
    for pod in pods:
        namespace = str(_get(pod, "metadata", "namespace"))
        for name in names:
            group = _get(pod, "metadata", "annotations", name)
            if isinstance(group, str):
                found[namespace, group].append(pod)
                break
    return found


def _job(job: object) -> Mapping[str, Any]:
    """A job of Volcano."""
    phase = _get(job, "status", "state", "phase")
    if phase not in ENDED:
        raise EntryError("status.state.phase", "is of a job that had not ended", EXCLUDED)
    duration_s = 0
    for running, after in pairwise(_items(job, "status", "conditions")):
        if _get(running, "status") == "Running":
            seconds = [_seconds(x, "lastTransitionTime") for x in (running, after)]
            if seconds[1] < seconds[0]:
                raise EntryError("status.conditions", "are not in the order of time")
            duration_s += seconds[1] - seconds[0]
    asked = [
        tuple(_count(task, "replicas") * x for x in _asked(_get(task, "template", "spec")))
        for task in _items(job, "spec", "tasks")
    ]
    types = [_get(task, "template", "spec") for task in _items(job, "spec", "tasks")]
    return _row(job, duration_s, [sum(x) for x in zip(*asked, strict=True)], WHOLE_GPU, types)


def _group(
    group: object, by_group: Mapping[tuple[object, object], list[object]]
) -> Mapping[str, Any]:
    """A PodGroup, by what became of its pods."""
    name, namespace = (_get(group, "metadata", key) for key in ("name", "namespace"))
    pods = by_group.get((str(namespace), str(name)), [])
    if not pods:
        raise EntryError("pods", "are gone: no duration", EXCLUDED)
    changes: list[tuple[int, tuple[float, ...]]] = []
    parts = set()
    for pod in pods:
        if _get(pod, "status", "phase") not in FINISHED:
            raise EntryError("status.phase", "is of a pod that had not ended", EXCLUDED)
        ended = [
            _seconds(status, "state", "terminated", "finishedAt")
            for status in _items(pod, "status", "containerStatuses")
        ]
        if not ended or _get(pod, "status", "startTime") is None:
            raise EntryError("containerStatuses", "has no end: a pod never ran", EXCLUDED)
        began = _seconds(pod, "status", "startTime")
        if max(ended) < began:
            raise EntryError("finishedAt", "is before startTime")
        held, milli = _held(pod)
        parts |= {milli} if held[0] else set()
        changes += [(began, held), (max(ended), tuple(-x for x in held))]
    changes.sort()
    most = [max(accumulate(x)) for x in zip(*(held for _, held in changes), strict=True)]
    milli = parts.pop() if parts else WHOLE_GPU
    if parts or (milli < WHOLE_GPU and most[0] > 1):
        raise EntryError(FRACTION, "is a fraction of several GPUs", EXCLUDED)
    specs = [_get(pod, "spec") for pod in pods]
    return _row(group, changes[-1][0] - changes[0][0], most, milli, specs)


def _row(
    job: object, duration_s: int, asked: list[float], gpu_milli: int, specs: Iterable[object]
) -> Mapping[str, Any]:
    if duration_s == 0:
        raise EntryError("status", "took no second: the job never ran", EXCLUDED)
    num_gpus, cores, memory = asked or (0, 0, 0)
    if num_gpus == 0:
        raise EntryError(GPU, "is not asked for: a job without GPU", EXCLUDED)
    if num_gpus != int(num_gpus):
        raise EntryError(GPU, "is not a whole number")
    name, namespace = (str(_get(job, "metadata", key) or "") for key in ("name", "namespace"))
    types = [_get(spec, "nodeSelector", PRODUCT) for spec in specs]
    return {
        "job_id": f"{namespace}/{name}" if name else "",
        "submit_s": _seconds(job, "metadata", "creationTimestamp"),
        "duration_s": duration_s,
        "num_gpus": int(num_gpus),
        "gpu_milli": gpu_milli,
        "cpu_milli": round(1000 * cores),
        "memory_mib": round(memory / MIB),
        "user": namespace,
        "queue": _get(job, "spec", "queue"),
        "gpu_type": "|".join(sorted({x for x in types if isinstance(x, str)})),
    }


def _asked(spec: object) -> tuple[float, ...]:
    """GPUs, cores and bytes that the containers of a pod ask for."""
    total = [0.0, 0.0, 0.0]
    for container in _items(spec, "containers"):
        for place, name in enumerate((GPU, "cpu", "memory")):
            values = [_get(container, "resources", x, name) for x in ("requests", "limits")]
            total[place] += _quantity(name, next((x for x in values if x is not None), 0))
    return tuple(total)


def _held(pod: object) -> tuple[tuple[float, ...], int]:
    """What a pod asks for, and the thousandths of each of its GPUs."""
    annotations = _get(pod, "metadata", "annotations")
    gpus, *rest = _asked(_get(pod, "spec"))
    if _get(annotations, MEMORY) is not None:
        raise EntryError(MEMORY, "is no part of a GPU", EXCLUDED)
    fraction = _get(annotations, FRACTION)
    if fraction is None:
        return (gpus, *rest), WHOLE_GPU
    milli = round(WHOLE_GPU * _quantity(FRACTION, fraction))
    if not 0 < milli <= WHOLE_GPU:
        raise EntryError(FRACTION, "is not between 0 and 1")
    return (_quantity(DEVICES, _get(annotations, DEVICES) or 1), *rest), milli


def _count(node: object, key: str) -> int:
    value = _get(node, key)
    if value is not None and (type(value) is not int or value < 0):
        raise EntryError(key, "is no whole number of at least 0")
    return value or 0


def _quantity(name: str, value: object) -> float:
    """A number of Kubernetes, `500m`, `2` or `16Gi`."""
    parts = QUANTITY.fullmatch(str(value))
    if parts is None:
        raise EntryError(name, "is no amount")
    number, suffix = parts.groups()
    scale = SCALES.get(suffix or "")
    found = float(number) * scale if scale else float(number + (suffix or ""))
    if found > 1e30:
        raise EntryError(name, "is too large")
    return found


def _seconds(node: object, *path: str) -> int:
    value = _get(node, *path)
    try:
        moment = datetime.fromisoformat(value)
        if moment.tzinfo is None or moment.year < 1970:
            raise ValueError
        return int(moment.timestamp())
    except (TypeError, ValueError, OverflowError):
        raise EntryError(".".join(path), "is no time such as 2026-11-22T14:05:00Z") from None
