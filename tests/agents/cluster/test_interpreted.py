"""Kernels that are interpreted come to what compiled ones come to, to the last digit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from interpreted_schedules import schedules


@pytest.mark.slow
@pytest.mark.proof
def test_schedules_of_interpreted_kernels_are_those_of_compiled_ones(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.agents.cluster.interpreted_schedules"],
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    interpreted = json.loads(run.stdout)
    assert not interpreted["compiled"]
    assert interpreted["found"] == schedules()
