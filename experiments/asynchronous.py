"""Asynchronous training in virtual time: the time to one loss under every policy, tuned alike.

python -m experiments.asynchronous
python -m experiments.asynchronous workers=[8,128] heterogeneity=[4] policies=[tap,adsp]

Gradients are those of a real model of bytes; `text` is any file.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch

from envs.asynchronous.workers import spread_workers
from envs.errors import InputError
from envs.files import read_content
from experiments.guarantees.asynchronous import OURS, AsynchronousConfig, candidates, compared
from experiments.pictures.studies import draw_losses
from experiments.run.app import main_of
from experiments.run.artifacts import write_figure
from experiments.run.one_run import Result, Run
from experiments.run.provenance import file_hash
from experiments.study.tables import Table, write_tables
from models.asynchronous.characters import CONTEXT

COLUMNS = {
    "workers": "n", "heterogeneity": "h", "policy": "policy", "with": "with", "rate": "rate",
    "mean_s": "s", "half_width_s": "±", "reached": "reached", "over_adsp": "/ adsp's", "low": "low",
    "high": "high", "commits": "commits", "staleness": "staleness",
}  # fmt: skip


def asynchronous(config: AsynchronousConfig, run: Run) -> Result:
    """A table of all settings, and a picture of the losses of the first seed."""
    torch.set_num_threads(1)  # more would share out sums of a few numbers
    candidates(config)
    text = read_content(config.text)
    if len(text) <= CONTEXT:
        raise InputError(f"{len(text)} bytes are no context and what follows", file=config.text)
    played, table = {}, list[dict[str, Any]]()
    for n, h in itertools.product(config.workers, config.heterogeneity):
        own = spread_workers(n, h, config.step_s, config.push_s, config.pull_s, config.jitter)
        run.console.print(f"{n} workers, heterogeneity {h:g}")
        rows, first = compared(config, text, own, run.console.print)
        played[f"{n} workers, h = {h:g}"] = first
        table += [{"workers": n, "heterogeneity": h, **row} for row in rows]
    title = f"Virtual seconds to a loss of {config.target:g}, {config.runs} seeds"
    shown = [
        {k: f"{v:.4g}" if isinstance(v, float) else str(v) for k, v in r.items()} for r in table
    ]
    cells = [[row[column] for column in COLUMNS] for row in shown]
    note = "±, low and high: 95 %; / adsp's: time over ADSP's, paired by seed."
    write_tables(run, title, [Table("Policies", [*COLUMNS.values()], cells, note)], run.provenance)
    picture = run.folder / "losses.png"
    write_figure(picture, draw_losses(played, config.target, title), run.provenance)
    inputs = run.provenance.with_inputs(text=file_hash(config.text))
    rivals = [row["over_adsp"] for row in table if row["policy"] not in (OURS, f"{OURS}_fixed")]
    found = {"policies": table, "fastest_rival_over_adsp": min(rivals, default=None)}
    return Result({**found, "picture": str(picture)}, inputs)


main = main_of("asynchronous")
