"""A driver in a process of its own, to be killed: of one Slurm, until a file is there."""

from __future__ import annotations

import sys
from pathlib import Path

from agents.cluster.live import PolicyDecider
from agents.cluster.queue import FIFOBackfill
from envs.cluster.slurm.commands import Slurm, SlurmError
from experiments.driving.driver import AuditLog, Driver

if __name__ == "__main__":
    config, audit, stop = sys.argv[1:]
    slurm = Slurm("gpu", config, timeout_s=3.0)
    decider = PolicyDecider(FIFOBackfill())
    decider.warm()
    driver = Driver(slurm, decider, AuditLog(Path(audit)))
    while True:  # the controller may be dead when it begins
        try:
            if slurm.find_record():
                break
        except SlurmError as error:
            print(error, file=sys.stderr)
    driver.run(Path(stop).exists)
