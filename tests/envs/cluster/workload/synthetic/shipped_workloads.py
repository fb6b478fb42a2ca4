"""The workloads in `conf/workload`, read without the project's reader."""

from __future__ import annotations

from typing import Any

import yaml

from envs.cluster.workload.synthetic.parameters import WorkloadParameters, workload_parameters
from tests.paths import CONF

SHIPPED = CONF / "workload"


def document(name: str = "itp") -> dict[str, Any]:
    found = yaml.safe_load((SHIPPED / f"{name}.yaml").read_text())
    del found["_target_"]
    return dict(found)


def shipped(name: str) -> WorkloadParameters:
    return workload_parameters(**document(name))
