"""Asynchronous training on a virtual clock: the time to one loss under every policy, tuned alike.

python -m experiments.asynchronous
python -m experiments.asynchronous workers=[8,128] heterogeneity=[4] policies=[tap,adsp]

Gradients are those of a real model of bytes; `text` is any file.
"""

from __future__ import annotations

import sys
import time

import torch

from envs.errors import InputError
from envs.files import read_content
from experiments.guarantees.asynchronous import (
    COLUMNS,
    AsynchronousConfig,
    candidates,
    cells,
    compared,
    rows,
    settings,
    verdicts,
)
from experiments.pictures.asynchronous import draw_losses
from experiments.run.app import run_app
from experiments.run.artifacts import write_figure
from experiments.run.one_run import Result, Run
from experiments.run.provenance import file_hash
from experiments.run.tables import Table, write_tables

PICTURE_FILE = "losses.png"


def asynchronous(config: AsynchronousConfig, run: Run) -> Result:
    """A table of all settings, and a picture of the losses of the first seed."""
    start = time.perf_counter()
    torch.set_num_threads(1)  # more would share out sums of a few numbers
    candidates(config)
    text = read_content(config.text)
    if len(text) <= config.context:
        raise InputError(f"holds {len(text)} bytes, no context and what follows", file=config.text)
    played, table = {}, []
    for n, h, workers in settings(config):
        run.console.print(f"{n} workers, heterogeneity {h:g}")
        found = compared(config, text, workers, run.console.print)
        played[f"{n} workers, h = {h:g}"] = {name: own.runs[0] for name, own in found.items()}
        table += rows(config, n, h, found)
    title = f"Virtual seconds to a loss of {config.target:g}, {config.runs} seeds"
    note = "± and [] are 95 % intervals; / adsp's: over ADSP's time at the same seed."
    write_tables(
        run,
        title,
        [Table("Policies", COLUMNS, [cells(row) for row in table], note)],
        run.provenance,
    )
    picture = run.folder / PICTURE_FILE
    write_figure(picture, draw_losses(played, config.target, title), run.provenance)
    steps = sum(one.steps for own in played.values() for one in own.values())
    values = {"policies": table, "adsp_against": verdicts(table), "picture": str(picture)}
    values |= {"steps": steps, "seconds": time.perf_counter() - start}
    inputs = run.provenance.with_inputs(text=file_hash(config.text))
    return Result(values, inputs, ("picture", "seconds"))


def main(arguments: list[str] | None = None) -> int:
    return run_app("asynchronous", AsynchronousConfig, asynchronous, arguments)


if __name__ == "__main__":
    sys.exit(main())
