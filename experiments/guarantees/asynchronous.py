"""What `experiments.asynchronous` does: every policy tuned alike, its time to one loss."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import MinLen

from agents.asynchronous.adsp import Adsp
from agents.asynchronous.policies import AdaComm, LocalSteps
from envs.asynchronous.simulation import Policy, Training, staleness, train, violations
from envs.asynchronous.workers import Heterogeneity, Workers, spread_workers
from envs.bounds import Count, NonNegative, Positive, Share
from envs.errors import InputError
from experiments.run.statistics import half_width
from models.asynchronous.characters import CharacterModel, CharacterShape

OURS = "adsp"
COLUMNS = (
    "workers", "h", "policy", "with", "rate", "s to target", "reached", "/ adsp's", "commits",
    "staleness",
)  # fmt: skip
Score = tuple[float, float]  # seconds to the target, and the last loss; less is better
Counts = Annotated[list[Count], MinLen(1)]
Seconds = Annotated[list[Positive], MinLen(1)]


@dataclass
class AsynchronousConfig:
    """`conf/asynchronous.yaml`."""

    text: str
    context: Count
    embedding: Count
    hidden: Count
    batch: Count
    workers: Counts
    heterogeneity: Annotated[list[Heterogeneity], MinLen(1)]
    step_s: Positive
    push_s: NonNegative
    pull_s: NonNegative
    serve_s: NonNegative
    jitter: NonNegative
    target: Positive
    evaluate_s: Positive
    smooth: Count
    horizon_s: Positive
    policies: Annotated[list[str], MinLen(1)]
    learning_rates: Seconds
    slack: Counts
    local_steps: Counts
    adacomm_s: Positive
    decay: Annotated[list[Share], MinLen(1)]
    check_s: Seconds
    epoch: Count
    commit_rates: Counts
    runs: Count
    seed: int
    json: bool


@dataclass(frozen=True)
class Tuned:
    """A policy in one setting: its parameters and learning rate, and its runs, a seed each."""

    label: str
    rate: float
    runs: list[Training]
    chosen: list[list[tuple[float, int]]]  # by ADSP in each run: times and rates


def candidates(config: AsynchronousConfig) -> Mapping[str, Mapping[str, Policy]]:
    """Every policy by name, with the parameters it is tuned over.

    Raises:
        InputError: `policies` has an unknown name, or lacks ADSP.
    """
    rounds = itertools.product(config.local_steps, config.decay)
    least = min(config.check_s)
    found: dict[str, Mapping[str, Policy]] = {
        "bsp": {"": LocalSteps(1, 0)},
        "ssp": {f"slack {s}": LocalSteps(1, s) for s in config.slack},
        "tap": {"": LocalSteps(1, math.inf)},
        "local_sgd": {f"{k} steps": LocalSteps(k, 0) for k in config.local_steps},
        "adacomm": {f"{k} steps, decay {d:g}": AdaComm(k, config.adacomm_s, d) for k, d in rounds},
        OURS: {f"{s:g} s": Adsp(s, config.epoch) for s in config.check_s},
        "adsp_fixed": {f"{c} in {least:g} s": Adsp(least, 1, c) for c in config.commit_rates},
    }
    if not {OURS} <= set(config.policies) <= set(found):
        names = ", ".join(found)
        raise InputError(f"config key 'policies': these are names of {names}, {OURS} among them")
    return {name: found[name] for name in config.policies}


def settings(config: AsynchronousConfig) -> list[tuple[int, float, Workers]]:
    """Every number of workers with every heterogeneity."""
    times = (config.step_s, config.push_s, config.pull_s, config.jitter, config.serve_s)
    return [
        (n, h, spread_workers(n, h, *times))
        for n, h in itertools.product(config.workers, config.heterogeneity)
    ]


def compared(
    config: AsynchronousConfig, text: bytes, workers: Workers, told: Callable[[str], None]
) -> dict[str, Tuned]:
    """Every policy with what takes it to the target first on the first seed, run on the others."""
    shape = CharacterShape(config.context, config.embedding, config.hidden)

    def trained(policy: Policy, rate: float, seed: int, horizon: float) -> Training:
        model = CharacterModel(text, shape, config.batch, seed)
        found = train(
            model, workers, policy, rate=rate, target=config.target,
            evaluate_s=config.evaluate_s, smooth=config.smooth, horizon_s=horizon, seed=seed,
        )  # fmt: skip
        wrong = violations(found, workers, policy.ahead)
        if wrong:
            raise AssertionError(f"{len(wrong)} violations, the first: {wrong[0]}")
        return found

    found = {}
    for name, own in candidates(config).items():
        best, label, policy, rate = (math.inf, math.inf), "", next(iter(own.values())), 0.0
        for tried, candidate in own.items():
            horizon = min(best[0], config.horizon_s)  # later than the best is as good as never

            def score(rate: float, policy: Policy = candidate, horizon: float = horizon) -> Score:
                run = trained(policy, rate, config.seed, horizon)
                return run.reached, run.losses[-1]

            score_of, at = climbed(score, sorted(config.learning_rates))
            if score_of < best:
                best, label, policy, rate = score_of, tried, candidate, at
        found[name] = Tuned(label, rate, [], [])
        for seed in range(config.seed + 1, config.seed + 1 + config.runs):
            found[name].runs.append(trained(policy, rate, seed, config.horizon_s))
            found[name].chosen.append(getattr(policy, "chosen", []))
        told(f"{name} {label}, rate {rate:g}: {np.mean(_seconds(found[name], math.inf)):.0f} s")
    return found


def climbed(score: Callable[[float], Score], rates: Sequence[float]) -> tuple[Score, float]:
    """The least score and its rate, uphill from the middle one in both directions."""
    middle = len(rates) // 2
    best = score(rates[middle]), rates[middle]
    for way in (rates[middle + 1 :], rates[:middle][::-1]):
        for rate in way:
            found = score(rate)
            if found >= best[0]:
                break
            best = found, rate
    return best


def _seconds(tuned: Tuned, horizon: float) -> list[float]:
    return [min(run.reached, horizon) for run in tuned.runs]


def rows(
    config: AsynchronousConfig, n: int, h: float, found: Mapping[str, Tuned]
) -> list[dict[str, object]]:
    """A record of each policy; times over ADSP's are paired by seed, geometric means.

    A run that failed counts as one of `horizon_s`, which flatters it.
    """
    ours = np.log(_seconds(found[OURS], config.horizon_s))
    table: list[dict[str, object]] = []
    for name, tuned in found.items():
        seconds = _seconds(tuned, config.horizon_s)
        gap = np.log(seconds) - ours
        middle, half = float(gap.mean()), half_width(gap)
        late = [staleness(run) for run in tuned.runs]
        commits = sum(float(counts.sum()) for counts in late)
        table.append(
            {
                "workers": n,
                "heterogeneity": h,
                "policy": name,
                "with": tuned.label,
                "rate": tuned.rate,
                "seconds": seconds,
                "mean_s": float(np.mean(seconds)),
                "half_width_s": half_width(seconds),
                "reached": sum(math.isfinite(run.reached) for run in tuned.runs),
                "over_adsp": math.exp(middle),
                "low": math.exp(middle - half),
                "high": math.exp(middle + half),
                "commits": commits / len(late),
                "staleness": sum(float(c @ np.arange(len(c))) for c in late) / max(commits, 1.0),
                "commit_rates": tuned.chosen,
            }
        )
    return table


def cells(row: Mapping[str, object]) -> list[str]:
    """A row of the table, `COLUMNS`."""
    return [
        str(row["workers"]), f"{row['heterogeneity']:g}", str(row["policy"]), str(row["with"]),
        f"{row['rate']:g}", f"{row['mean_s']:.0f} ± {row['half_width_s']:.0f}", str(row["reached"]),
        f"{row['over_adsp']:.2f} [{row['low']:.2f}, {row['high']:.2f}]", f"{row['commits']:.0f}",
        f"{row['staleness']:.1f}",
    ]  # fmt: skip


def verdicts(table: list[dict[str, object]]) -> dict[str, list[str]]:
    """The settings in which each other policy is slower, faster, or neither than ADSP."""
    found: dict[str, list[str]] = {"slower": [], "faster": [], "undecided": []}
    for row in table:
        if row["policy"] != OURS:
            where = f"{row['policy']}, {row['workers']} workers, h {row['heterogeneity']:g}"
            low, high = float(str(row["low"])), float(str(row["high"]))
            found["slower" if low > 1.0 else "faster" if high < 1.0 else "undecided"].append(where)
    return found
