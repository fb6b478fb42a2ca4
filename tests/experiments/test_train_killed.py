"""A training of placements that is killed and resumed is the one that was left alone."""

from __future__ import annotations

import csv
import multiprocessing
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.strength import trials

ROWS, KILLS = trials(20, 6), trials(5, 1)
RUN = [
    "training.budget_s=null", f"training.max_steps={16 * ROWS}", "training.checkpoint_every=3",
    "training.evaluate_every=7", "training.evaluation_episodes=1", "agent.num_envs=16",
]  # fmt: skip
ONE = ["graph=bert_base", "topology=mixed_v100_p100", "env.max_groups=12", "agent.group_size=16"]
MANY = [
    "env=problems", "env.kept=3", "agent.group_size=8", "env.layout.groups=32",
    "env.problems.most_groups=32", "env.problems.most_devices=8", "env.problems.captured_share=0.8",
    "env.problems.captured.groups=64", "env.problems.captured.models="
    "[{name: bert_base, batch: 8, sequence: 128, micro_batches: 4}]",
]  # fmt: skip
CLOCK = {"charts/seconds", "charts/SPS", "charts/sample_seconds", "charts/learn_seconds"}


def session(arguments: list[str], last: int | None) -> None:
    """The app until it has trained, or until the row of iteration `last` is on the disk."""
    from experiments.learning import training
    from experiments.learning.trainer import ITERATION, MetricsLog, Row
    from experiments.train import main

    written, trained = MetricsLog.write, training.train_policies

    def write(log: MetricsLog, row: Row) -> None:
        written(log, row)
        if row[ITERATION] == last:
            os.kill(os.getpid(), signal.SIGKILL)

    def train(*arguments: Any, **named: Any) -> None:
        trained(*arguments, **named)
        os._exit(0)  # without pictures and bounds

    MetricsLog.write = write  # type: ignore[method-assign]
    training.train_policies = train  # type: ignore[assignment]
    sys.exit(main(arguments))


def played(arguments: list[str], last: int | None = None) -> None:
    """A session in a process of its own, forked from one that has imported everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        [
            "experiments.train",
            "agents.rllib.training",
            "agents.rllib.step.plans",
            "torch._dynamo",
        ]
    )
    process = context.Process(target=session, args=(arguments, last))
    process.start()
    process.join()
    assert process.exitcode == (0 if last is None else -signal.SIGKILL)


def outcome(folder: Path) -> tuple[list[dict[str, str]], dict[str, bytes]]:
    """Metrics, and every array of the last checkpoint and of the best evaluation."""
    with (folder / "metrics.csv").open(newline="") as file:
        rows = [{k: v for k, v in row.items() if k not in CLOCK} for row in csv.DictReader(file)]
    places = max((folder / "checkpoints").glob("iteration_*")), folder / "best"
    return rows, {
        f"{place.name}/{file.name}": file.read_bytes()
        for place in places
        for file in place.glob("*.safetensors")
    }


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "problems", [pytest.param(ONE, marks=pytest.mark.proof), MANY], ids=["one", "many"]
)
def test_killed_at_any_rows_it_is_the_undisturbed_run(tmp_path: Path, problems: list[str]) -> None:
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    start = [*problems, *RUN]
    played([*start, f"hydra.run.dir={whole}"])
    killed = sorted(random.Random(38).sample(range(1, ROWS), KILLS))
    played([*start, f"hydra.run.dir={torn}"], killed[0])
    for row in killed[1:]:
        played([f"resume={torn}"], row)
    played([f"resume={torn}"])
    rows, arrays = outcome(torn)
    assert [int(row["iteration"]) for row in rows] == list(range(1, ROWS + 1))
    assert (rows, arrays) == outcome(whole)
