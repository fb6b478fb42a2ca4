"""The environment that needs a Slurm of its own, as a parameter of tests."""

import os

import pytest

from envs.cluster.slurm.machine import missing_programs

LIVE = "meshwright/SlurmCluster-v0"
needs_slurm = pytest.mark.skipif(
    bool(missing_programs()) or os.geteuid() != 0, reason="needs Debian's slurm-wlm, and root"
)
LIVE_HERE = pytest.param(LIVE, marks=[pytest.mark.slow, needs_slurm])
