"""The workloads in `conf/workload`, read without the project's reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

SHIPPED = Path(__file__).parents[5] / "conf" / "workload"


def document(name: str = "itp") -> dict[str, Any]:
    found = yaml.safe_load((SHIPPED / f"{name}.yaml").read_text())
    del found["_target_"]
    return dict(found)
