"""Objects of Kubernetes and of Volcano as their schedulers send them."""

from __future__ import annotations

from typing import Any

from experiments.serving.objects import GROUP, PRODUCT, SIZE

GPU = "nvidia.com/gpu"
Object = dict[str, Any]


def node(name: str, gpus: int = 8, kind: str = "V100", ready: str = "True") -> Object:
    have = {"cpu": "64", "memory": "512Gi", "pods": "110"} | ({GPU: str(gpus)} if gpus else {})
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": {PRODUCT: kind}},
        "spec": {"podCIDR": "10.0.0.0/24", "taints": None},
        "status": {"capacity": have, "allocatable": have,
                   "conditions": [{"type": "Ready", "status": ready}]},
    }  # fmt: skip


def pod(name: str, gpus: int = 1, gang: str = "", size: int = 0, **more: Any) -> Object:
    asks = {"requests": {"cpu": "500m", GPU: str(gpus)}, "limits": {GPU: str(gpus)}}
    about = {GROUP[0]: gang, SIZE[0]: str(size)} if gang else None
    return {
        "metadata": {"name": name, "namespace": "team", "uid": f"uid-{name}", "annotations": about,
                     "creationTimestamp": "2026-01-02T03:04:05Z"},
        "spec": {"containers": [{"name": "main", "resources": asks if gpus else {}}], **more},
        "status": {"phase": "Pending"},
    }  # fmt: skip


def asking(of: Object, nodes: list[Object], *, whole: bool = True) -> Object:
    """`ExtenderArgs`."""
    listed = {"metadata": {}, "items": nodes} if whole else None
    names = None if whole else [one["metadata"]["name"] for one in nodes]
    return {"Pod": of, "Nodes": listed, "NodeNames": names}


def snapshot(nodes: list[Object], *pods: Object) -> Object:
    return {"nodes": {"items": nodes}, "pods": {"items": [*pods]}}


def resource(gpus: int) -> Object:
    return {"MilliCPU": 4000, "Memory": 1e9, "ScalarResources": {GPU: 1000 * gpus}, "MaxTaskNum": 0}


def task(name: str, job: str, gpus: int = 1, on: str = "") -> Object:
    """`api.TaskInfo`, which runs where `on` names a node."""
    return {
        "UID": f"uid-{name}", "Job": job, "Name": name, "Namespace": "team",
        "Resreq": resource(gpus), "NodeName": on, "Status": 32 if on else 1, "Priority": 1,
        "Pod": pod(name, gpus), "LastTransaction": None,
    }  # fmt: skip


def node_info(name: str, gpus: int = 8, idle: int = 8) -> Object:
    return {"Name": name, "Node": node(name, gpus), "State": {"Phase": 1, "Reason": ""},
            "Idle": resource(idle), "Allocatable": resource(gpus), "Tasks": {}}  # fmt: skip


def job(uid: str, *tasks: Object, gpus: int = 0) -> Object:
    """`api.JobInfo`; without tasks, one whose group asks for GPUs."""
    least = {"cpu": "4", GPU: str(gpus)} if gpus else None
    return {
        "UID": uid, "Namespace": "team", "Queue": "default", "MinAvailable": len(tasks),
        "Tasks": {one["UID"]: one for one in tasks}, "CreationTimestamp": "2026-01-02T03:04:05Z",
        "PodGroup": {"metadata": {"name": uid}, "spec": {"minResources": least}, "Version": ""},
    }  # fmt: skip


def session(jobs: list[Object], nodes: list[Object]) -> Object:
    return {
        "Jobs": {one["UID"]: one for one in jobs}, "Nodes": {one["Name"]: one for one in nodes},
        "Queues": {}, "NamespaceInfo": None, "RevocableNodes": {}, "NodeList": None,
    }  # fmt: skip
