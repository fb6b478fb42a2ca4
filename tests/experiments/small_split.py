"""A split of one made-up trace, and a scheduler that plays it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from hydra.utils import instantiate

from agents.cluster.queue import SRTF
from agents.cluster.replay import replay
from agents.cluster.rules.gangs import FirstFit
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster_state import Schedule
from envs.cluster.workload.trace import Trace
from experiments.config.config_source import SHIPPED_CONFIGS
from experiments.run.provenance import file_hash
from models.durations.network import DurationPosterior, save_durations

JOBS = 60


class PlayedSRTF:
    """SRTF under another name and with a false claim: it says that it knows nothing."""

    name = "played"

    def __init__(self, checkpoint: str, knows: str) -> None:
        self.folder, self.knows = checkpoint, knows

    def play(self, cluster: Cluster, trace: Trace, *, keep_runs: bool, **settings: Any) -> Schedule:
        """The schedule."""
        return replay(SRTF(FirstFit(), 0), cluster, trace, keep_runs=keep_runs, **settings)


def write_jobs(folder: Path) -> Path:
    """Two thirds of the jobs in the first half of the time, a tenth too large for the cluster."""
    rng = np.random.default_rng(0)
    submit = np.sort(np.concatenate([rng.integers(0, 5000, 40), rng.integers(5000, 10_000, 20)]))
    submit[0], submit[-1] = 0, 10_000
    rows = [
        f"{job},{second},{rng.integers(20, 2000)},{16 if job % 10 == 5 else rng.integers(1, 4)}"
        for job, second in enumerate(submit)
    ]
    path = folder / "jobs.csv"
    path.write_text("\n".join(["job_id,submit_s,duration_s,num_gpus", *rows]) + "\n")
    return path


def overrides(folder: Path, **traces: str) -> list[str]:
    """The command line that puts the jobs in place of `conf/split/itp.yaml`'s traces."""
    path = write_jobs(folder)
    made = "path: jobs.csv, format: canonical, queue: null, max_gpus: 8, nodes: 4, load: 1.1"
    chosen = ", ".join(f"{name}: {{{made}{more}}}" for name, more in (traces or {"a": ""}).items())
    return [
        f"split.data={folder}",
        "~split.interference",
        "+split.interference._target_=envs.cluster.interference.rates.NoInterference",
        "split.gpus_per_node=4", "split.gpu_types=[V100,P100]", "split.nodes_per_rack=1",
        "split.shares={train: 0.5, validation: 0.2, test: 0.3}",
        "split.window_jobs=8", "split.least_jobs=4",
        "~split.inputs", f"+split.inputs={{jobs.csv: {file_hash(path)}}}",
        "~split.traces", f"+split.traces={{{chosen}}}",
        "+split.formats.canonical._target_=envs.cluster.workload.readers.canonical.CanonicalReader",
    ]  # fmt: skip


def one_of_several(folder: Path) -> list[str]:
    """`overrides`, made those of `splits.itp`."""
    return [text.replace("split.", "splits.itp.", 1) for text in overrides(folder)]


def write_posterior(folder: Path) -> None:
    """A small one of durations that has learned nothing, as `posterior`."""
    torch.manual_seed(0)
    config = instantiate(SHIPPED_CONFIGS.node("model/durations"), hidden=8, readout=8)
    save_durations(DurationPosterior(config), folder / "posterior", {"seed": 0})
