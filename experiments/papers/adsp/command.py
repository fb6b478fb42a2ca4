"""Asynchronous training in virtual time: the time to one loss under every policy, tuned alike.

meshwright asynchronous
meshwright asynchronous workers=[8,128] heterogeneity=[4] policies=[tap,adsp]

Gradients are those of a real model of bytes; `text` is any file.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import MinLen

from envs.bounds import Count, NonNegative, Positive, Share
from envs.errors import InputError
from envs.files import read_content
from experiments.papers.adsp.characters import CONTEXT, CharacterModel
from experiments.papers.adsp.policies import AdaComm, Adsp, LocalSteps
from experiments.papers.adsp.simulation import (
    Heterogeneity,
    Policy,
    Training,
    Workers,
    spread_workers,
    train,
    violations,
)
from experiments.pictures.style import Panel, Series, draw_curves
from experiments.reporting.tables import Table, write_tables
from experiments.run.one_run import Result, Run
from experiments.run.provenance import file_hash
from experiments.run.statistics import half_width

OURS, PICTURE_FILE = "adsp", "losses.png"
COLUMNS = {
    "n": "{workers}", "h": "{heterogeneity:.4g}", "policy": "{policy}", "with": "{with}",
    "rate": "{rate:.4g}", "s": "{mean_s:.4g}", "±": "{half_width_s:.4g}", "reached": "{reached}",
    "/ adsp's": "{over_adsp:.4g}", "low": "{low:.4g}", "high": "{high:.4g}",
    "commits": "{commits:.4g}", "staleness": "{staleness:.4g}",
}  # fmt: skip
Score = tuple[float, int, float]  # seconds to the target; seeds left, loss if inf; less is better
Counts = Annotated[Sequence[Count], MinLen(1)]
Numbers = Annotated[Sequence[Positive], MinLen(1)]


@dataclass(kw_only=True)
class AsynchronousConfig:
    """What is trained, on which workers, and how policies are tuned."""

    text: str = "LICENSE"  # a file; the model learns to predict its next byte
    batch: Count = 8  # places of the text in a gradient
    workers: Counts = (16,)  # how many: every number with every heterogeneity
    # speed of the fastest over that of the slowest, evenly spaced between
    heterogeneity: Annotated[Sequence[Heterogeneity], MinLen(1)] = (1.0, 2.0, 4.0, 8.0)
    step_s: Positive = 1.0  # of a local step at the mean speed, virtual as all times
    push_s: NonNegative = 2.0  # of an update on its way to the server
    pull_s: NonNegative = 2.0  # of parameters on their way back
    jitter: NonNegative = 0.1  # standard deviation of a step's time over its mean
    target: Positive = 2.2  # loss to reach, nats for a byte
    evaluate_s: Positive = 4.0  # between evaluations of the loss
    smooth: Count = 3  # evaluations whose mean is to reach the target
    horizon_s: Positive = 1000.0  # a run that takes longer has failed
    # adsp_fixed: at the best constant rate
    policies: Annotated[Sequence[str], MinLen(1)] = (
        "bsp",
        "ssp",
        "tap",
        "local_sgd",
        "adacomm",
        "adsp",
        "adsp_fixed",
    )
    # each policy climbs from the middle one
    learning_rates: Numbers = (0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 5.6)
    slack: Counts = (4,)  # and of these: commits that ssp lets a worker be ahead
    local_steps: Counts = (4, 16)  # steps of a round of local_sgd, or of the first round of adacomm
    adacomm_s: Positive = 20.0  # after which adacomm sets its rounds anew
    decay: Share = 0.5  # of its rounds where the loss does not shorten them
    check_s: Numbers = (20.0, 40.0)  # period of adsp
    epoch: Count = 20  # periods after which adsp searches its rate again
    commit_rates: Counts = (1, 2, 4)  # of adsp_fixed, commits in a period of the shortest check_s
    tuning: Count = 2  # seeds that all of this is chosen on, from seed on
    runs: Count = 5  # seeds after them, which are reported
    seed: int
    json: bool


def candidates(config: AsynchronousConfig) -> Mapping[str, Mapping[str, Policy]]:
    """Every policy by name, with the parameters it is tuned over.

    Raises:
        InputError: `policies` has an unknown name, or lacks ADSP.
    """
    least, steps = min(config.check_s), config.local_steps
    found: dict[str, Mapping[str, Policy]] = {
        "bsp": {"": LocalSteps(1, 0.0)},
        "ssp": {f"slack {s}": LocalSteps(1, float(s)) for s in config.slack},
        "tap": {"": LocalSteps(1, math.inf)},
        "local_sgd": {f"{k} steps": LocalSteps(k) for k in steps},
        "adacomm": {f"{k} steps": AdaComm(k, config.adacomm_s, config.decay) for k in steps},
        OURS: {f"{s:g} s": Adsp(s, config.epoch) for s in config.check_s},
        "adsp_fixed": {f"{c} in {least:g} s": Adsp(least, 1, c) for c in config.commit_rates},
    }
    if not {OURS} <= set(config.policies) <= set(found):
        names = ", ".join(found)
        raise InputError(f"config key 'policies': these are names of {names}, {OURS} among them")
    return {name: found[name] for name in config.policies}


def asynchronous(config: AsynchronousConfig, run: Run) -> Result:
    """A table of all settings, and a picture of the losses of the first seed."""
    torch.set_num_threads(1)  # more would share out sums of a few numbers
    candidates(config)
    text = read_content(config.text)
    if len(text) <= CONTEXT:
        raise InputError(f"{len(text)} bytes are no context and what follows", file=config.text)
    panels, table = [], list[dict[str, Any]]()
    labels = {"xlabel": "virtual seconds", "ylabel": "loss, nats"}
    for n, h in itertools.product(config.workers, config.heterogeneity):
        own = spread_workers(n, h, config.step_s, config.push_s, config.pull_s, config.jitter)
        run.console.print(f"{n} workers, heterogeneity {h:g}")
        rows, lines = compared(config, text, own, run.console.print)
        panels.append(Panel(lines, labels, f"{n} workers, h = {h:g}", config.target))
        table += [{"workers": n, "heterogeneity": h, **row} for row in rows]
    title = f"Virtual seconds to a loss of {config.target:g}, {config.runs} seeds"
    note = "±, low and high: 95 %; / adsp's: time over ADSP's, paired by seed."
    width = max(5.0, 3.2 * len(panels))
    figure = draw_curves(title, panels, width, 3.4, len(panels), sharey=True)
    tables = [Table.of("Policies", COLUMNS, table, note)]
    write_tables(run, title, tables, run.provenance, figures={PICTURE_FILE: figure})
    inputs = run.provenance.with_inputs(text=file_hash(config.text))
    rivals = [row["over_adsp"] for row in table if row["policy"] not in (OURS, f"{OURS}_fixed")]
    found = {"policies": table, "fastest_rival_over_adsp": min(rivals, default=None)}
    return Result({**found, "picture": str(run.folder / PICTURE_FILE)}, inputs)


def climbed(
    score: Callable[[float, float], Score], rates: list[float], limit: float
) -> tuple[Score, float]:
    """The least score and its rate, from the middle rate on in both directions while it falls."""
    middle = len(rates) // 2
    best = score(rates[middle], limit), rates[middle]
    for way in (rates[middle + 1 :], rates[:middle][::-1]):
        for rate in way:
            if (found := score(rate, min(limit, best[0][0]))) >= best[0]:
                break
            best = found, rate
    return best


def compared(
    config: AsynchronousConfig, text: bytes, workers: Workers, say: Callable[[str], None]
) -> tuple[list[dict[str, Any]], Series]:
    """A record of each policy, and its losses on the first of the seeds that are not tuned on.

    Times over ADSP's are geometric means over pairs with one seed. A run that failed counts as one
    of `horizon_s`, which flatters it.
    """

    def trained(policy: Policy, rate: float, seed: int, horizon: float) -> Training:
        """One run, its events checked; seeds are counted from the first."""
        seed += config.seed
        found = train(
            CharacterModel(text, config.batch, seed), workers, policy, rate=rate,
            target=config.target, evaluate_s=config.evaluate_s, smooth=config.smooth,
            horizon_s=horizon, seed=seed,
        )  # fmt: skip
        if wrong := violations(found, workers, policy.ahead):
            raise AssertionError(f"{len(wrong)} violations, the first: {wrong[0]}")
        return found

    def score(policy: Policy, rate: float, limit: float) -> Score:
        total = 0.0
        for seed in range(config.tuning):
            run = trained(policy, rate, seed, min(limit - total, config.horizon_s))
            total += run.reached  # later than `limit` is as good as never
            if math.isinf(total):
                return total, config.tuning - seed, run.losses[-1]
        return total, 0, 0.0

    rates = sorted(config.learning_rates)
    rows: dict[str, dict[str, Any]] = {}
    lines = {}
    for name, own in candidates(config).items():
        least: Score = math.inf, config.tuning + 1, 0.0
        for tried, candidate in own.items():
            found, at = climbed(partial(score, candidate), rates, least[0])
            if found < least:
                least, label, policy, rate = found, tried, candidate, at
        runs, chosen = [], []
        for seed in range(config.tuning, config.tuning + config.runs):
            runs.append(trained(policy, rate, seed, config.horizon_s))
            chosen.append(policy.chosen)
        seconds = [min(run.reached, config.horizon_s) for run in runs]
        late = [[event.staleness for event in run.events if event.steps] for run in runs]
        rows[name] = {
            "policy": name,
            "with": label,
            "rate": rate,
            "mean_s": np.mean(seconds),
            "half_width_s": half_width(seconds),
            "reached": sum(math.isfinite(run.reached) for run in runs),
            "commits": np.mean([*map(len, late)]),
            "staleness": np.mean([sum(own) / max(len(own), 1) for own in late]),
            "seconds": seconds,
            "staleness_counts": [*map(np.bincount, late)],
            "commit_rates": chosen,
        }
        lines[name] = runs[0].times, runs[0].losses
        say(f"{name} {label}, rate {rate:g}: {np.mean(seconds):.0f} s")
    for row in rows.values():
        logs = np.log(row["seconds"]) - np.log(rows[OURS]["seconds"])
        middle, half = np.mean(logs), half_width(logs)
        ends = np.exp((middle, middle - half, middle + half))
        row.update(zip(("over_adsp", "low", "high"), ends, strict=True))
    return list(rows.values()), lines
