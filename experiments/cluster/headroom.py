"""How far schedulers are from what could be had, regime by regime, before anything is trained."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Le, MinLen

from agents.cluster.rule_numbers import Numbers, NumberSearch, Tried
from envs.arrays import FloatArray
from envs.bounds import Count, Positive, bounded
from envs.cluster.workload.slicing import at_most_gpus
from envs.cluster.workload.trace import WHOLE_GPU
from envs.errors import InputError, require_one_of
from experiments.cluster.baselines import Contender, bound_s, called, problem_hash, replayed_on
from experiments.cluster.generalising import best_overall
from experiments.cluster.problem import ClusterProblem, built_policy
from experiments.cluster.split_windows import (
    SampledWindows,
    Split,
    SplitConfig,
    check_windows,
    inputs_of,
    sampled_window,
    sources,
)
from experiments.config.targets import build_as, check_targets
from experiments.pictures.style import draw_rows
from experiments.run.one_run import Result, Run
from experiments.study.display import ProgressDisplay
from experiments.study.grid import AppCell, FunctionCell, Grid
from experiments.study.processes import LocalProcesses
from experiments.study.statistics import CONFIDENCE, Interval, bootstrap
from experiments.study.tables import TABLE_FILE, Table, write_tables

SEVERAL = "partitioned"  # key of the policies that several schedulers can share a cluster with


@bounded
@dataclass(frozen=True)
class Regime:
    """Where schedulers are compared; `conf/regimes.yaml` says what the keys mean."""

    splits: Annotated[Sequence[str], MinLen(1)] = ("itp", "philly")  # whose windows
    jobs: Sequence[Count] = (100, 200)  # least and most consecutive jobs of a window
    nodes_per_type: Sequence[Count] = (2, 4)  # least and most nodes of each GPU type
    # least and most offered load, a GPU counted by its speed for the jobs, whole GPUs
    load: Sequence[Positive] = (1.0, 1.0)
    max_gpus: Count = 32  # jobs of more are left out, as are those that no GPU type holds
    gpu_types: Sequence[str] = ("V100", "P100", "T4")  # equal consecutive shares of the nodes
    nodes_per_rack: Count = 2  # nodes that share a rack switch; null: one rack
    # thousandths of each GPU that jobs ask for: 500 lets two share
    gpu_milli: Annotated[int, Ge(1), Le(WHOLE_GPU)] = 1000
    interference: str = "analytic"  # a name of interferences
    schedulers: Count = 1  # that share the cluster by its racks
    preemption: bool = False  # whether jobs may be stopped
    # of headroom's windows, the first, on which rollouts are tried
    rollouts: Annotated[int, Ge(0)] = 6

    @property
    def shares(self) -> bool:
        """Whether jobs ask for fractions of GPUs."""
        return self.gpu_milli < WHOLE_GPU

    def policy(self, node: Mapping[str, Any]) -> dict[str, Any]:
        """The config node of a policy, and of its base, with as many schedulers."""
        found = dict(node)
        if "base" in node:
            found["base"] = self.policy(node["base"])
        if SEVERAL in node:
            found[SEVERAL] = {**node[SEVERAL], "schedulers": self.schedulers}
        return found


@dataclass
class RegimeWindows(SampledWindows):
    """How windows of a regime are sampled."""

    KEY = "known"


@dataclass
class RegimesConfig:
    """What apps over regimes hold; `usual` and `known` are words of `Regime`."""

    splits: dict[str, SplitConfig]
    usual: dict[str, Any]
    known: dict[str, Any]
    interferences: dict[str, Any]
    seed: int

    def named(self, name: str, key: str) -> Regime:
        """`usual` with the words of a name, which the config has under `key`.

        Raises:
            InputError: the name or a word is unknown, or a value is none of its kind.
        """
        require_one_of(name, self.known, file=f"config key '{key}'")
        where = f"known.{name}"
        node = {**self.usual, **self.known[name]}
        check_targets(node, where)
        regime = build_as(Regime, node, where, "regime")
        for split in regime.splits:
            require_one_of(split, self.splits, file=f"config key '{where}.splits'")
        key = f"config key '{where}.interference'"
        require_one_of(regime.interference, self.interferences, file=key)
        return regime

    def problems(
        self, regime: Regime, window: str, purpose: int, count: int
    ) -> list[ClusterProblem]:
        """So many sampled windows of a regime; another `purpose` has others.

        Raises:
            InputError: a split or a window is bad, or nowhere are enough jobs.
        """
        changes = {
            "gpu_types": regime.gpu_types,
            "nodes_per_rack": regime.nodes_per_rack,
            "interference": self.interferences[regime.interference],
        }
        splits = [Split(replace(self.splits[name], **changes)) for name in regime.splits]
        parts = RegimeWindows(regime.jobs, regime.jobs[0], regime.nodes_per_type, regime.load)
        found = [
            replace(one, jobs=at_most_gpus(one.jobs, regime.max_gpus))
            for one in sources(splits, window, parts)
        ]
        problems = []
        for number in range(count):
            rng = np.random.default_rng((self.seed, purpose, number))
            name, problem = sampled_window(found, parts, rng)
            milli = np.full(len(problem.trace), regime.gpu_milli, np.int32)
            trace = replace(problem.trace, gpu_milli=milli, name=f"{window} {number} of {name}")
            problems.append(replace(problem, trace=trace))
        return problems


Node = Mapping[str, Any]
Policies = Annotated[dict[str, Any], MinLen(1)]

VERSION = 1  # of what `tuned` finds
LEARNING, JUDGING = 0, 1  # purposes of windows
PICTURE_FILE, WIDTH = "headroom.png", 200
FEW, BOUND = ("rollout", "true_future"), "bound"  # columns that take long, and the proved one
WHITE_BOX, POSTERIOR = "white_box", "posterior"
COLUMNS = (WHITE_BOX, "tuned", POSTERIOR, *FEW, "hindsight", BOUND)
GAIN = "posterior_over_white_box"
CAPTION = (
    "Mean JCT over that of the best baseline of the regime: means over windows, 95 % bootstrap "
    "intervals; below 1 is faster. White box: agent=joint_choice; where jobs may be stopped "
    "agent=migrating_las. Tuned: its numbers, sought on training windows of the regime. Posterior: "
    "its order by the learned posterior of durations; where jobs may be stopped the shipped "
    "scheduler. Rollout and true future: agent=rollout over futures that are drawn, and over the "
    "one that comes; on the first windows alone. Hindsight: durations known, agent=hindsight on "
    "the tuned numbers; where jobs may be stopped the best of the policies that know durations. "
    "Bound: proved for every schedule."
)


@dataclass(kw_only=True)
class HeadroomConfig(RegimesConfig):
    """`conf/headroom.yaml`; policies and the search are objects by `_target_`."""

    regimes: Sequence[str] | None = None  # names of known; null: all
    model: Any
    baselines: Policies
    stopping: dict[str, Any]
    rule: Any
    rollout: Any
    hindsight: Any
    movers: dict[str, Any]
    informed: Policies
    placement: Any
    sharing: Any
    # of the splits: whose jobs are replayed
    window: Annotated[Sequence[str], MinLen(1)] = ("validation",)
    training_window: str = "train"  # and whose the rule's numbers are sought on
    windows: Count = 12  # of a regime, of each
    training_windows: Count = 12
    samples: Count = 2000  # of the bootstrap
    cache: str = "outputs/headroom"  # folder of outcomes, kept by the hash of all they depend on
    workers: Count = 1  # regimes at a time, each a process
    json: bool

    def __post_init__(self) -> None:
        for window in self.window:
            check_windows(self.splits, self.training_window, window, ("training_window", "window"))
        self.chosen = {x: self.named(x, "regimes") for x in self.regimes or self.known}


def headroom(config: HeadroomConfig, run: Run) -> Result:
    """Measure one regime here, several each in a process of its own, and draw what came of them."""
    began = time.perf_counter()
    found = (_measured if len(config.chosen) == 1 else _each)(config, run)
    provenance = run.provenance.with_inputs(**inputs_of(config.splits))
    title = f"Headroom on {' and '.join(config.window)} windows"
    ratios = {
        name: {column: Interval(**ratio) for column, ratio in regime["ratios"].items()}
        for name, regime in found.items()
    }
    columns = {
        "regime": "{regime}", "best baseline": "{baseline}",
        "its mean JCT, s": "{baseline_mean_jct_s:,.0f}",
        **{column.replace("_", " "): f"{{{column}}}" for column in COLUMNS},
    }  # fmt: skip
    rows = []
    for name, regime in found.items():
        texts = {column: ratio.text() for column, ratio in ratios[name].items()}
        rows.append({"regime": name, **regime, **dict.fromkeys(COLUMNS, ""), **texts})
    gains = [
        (name, str(len(regime["by_window"][POSTERIOR])),
         *(Interval(**ratio).text() for ratio in regime[GAIN].values()))
        for name, regime in found.items()
        if regime[GAIN]
    ]  # fmt: skip
    tables = [
        Table.of("Regimes", columns, rows),
        Table("Posterior over white box", ("regime", "windows", "mean JCT", "p99"), gains),
    ]
    drawn = dict.fromkeys(x for row in ratios.values() for x in row if x != BOUND)
    picture = draw_rows(
        [*ratios],
        {x: [row.get(x, np.nan) for row in ratios.values()] for x in drawn},
        f"mean job completion time / that of the best baseline ({CONFIDENCE:.0%} interval)",
        title,
        bound=[row[BOUND].mean for row in ratios.values()],
    )
    figures = {PICTURE_FILE: picture}
    write_tables(run, title, tables, provenance, caption=CAPTION, width=WIDTH, figures=figures)
    return Result(
        {
            "regimes": found,
            "table": str(run.folder / TABLE_FILE),
            "picture": str(run.folder / PICTURE_FILE),
            "seconds": time.perf_counter() - began,
        },
        provenance,
        shown=("table", "picture", "seconds"),
    )


def _each(config: HeadroomConfig, run: Run) -> dict[str, Any]:
    """All regimes, each by a run of this app."""
    own = ("regimes=", "workers=", "json=", "hydra.")
    words = tuple(word for word in run.overrides if not word.startswith(own))
    cells = [
        AppCell(name, "headroom", (*words, f"regimes=[{name}]"), run.folder / "cells" / name)
        for name in config.chosen
    ]
    with ProgressDisplay(run.console) as display:
        found = Grid(LocalProcesses(config.workers), run.provenance).run(cells, display)
    if found.faults:
        raise InputError(found.faults_line())
    return {cell.name: found.documents[cell]["regimes"][cell.name] for cell in cells}


def _measured(config: HeadroomConfig, run: Run) -> dict[str, Any]:
    """One regime; every replay, and what the search for numbers finds, is kept by its inputs."""
    ((name, regime),) = config.chosen.items()
    problems = [
        problem
        for window in config.window
        for problem in config.problems(regime, window, JUDGING, config.windows)
    ]
    numbers = {} if regime.preemption else _numbers(config, regime, run)
    usual = _baselines(config, regime)
    contenders = _contenders(config, regime, numbers)
    asked = []
    for column, nodes in [*((x, [node]) for x, node in usual.items()), *contenders.items()]:
        some = problems[: regime.rollouts] if column in FEW else problems
        for node in map(regime.policy, nodes):
            asked.append((Contender(column, None, node, partial(built_policy, node, column)), some))
    rows = iter(replayed_on(asked, Path(config.cache), run))
    yardsticks = np.array([[one.mean_jct_s for one in next(rows)] for _ in usual])
    best = best_overall(yardsticks)
    found, p99 = {}, {}
    for column, nodes in contenders.items():  # the mean of the best of its policies
        group = [next(rows) for _ in nodes]
        found[column] = np.min([[one.mean_jct_s for one in row] for row in group], axis=0)
        p99[column] = np.array([one.p99_jct_s for one in group[0]])
    found[BOUND] = np.array([bound_s(problem) for problem in problems])
    ratios = {column: row / yardsticks[best][: len(row)] for column, row in found.items()}
    both = {WHITE_BOX, POSTERIOR} <= set(contenders)
    gains = {"mean_jct_s": found, "p99_jct_s": p99} if both else {}
    relative = (yardsticks / yardsticks[best]).mean(axis=1)
    values = {
        "baseline": list(usual)[best],
        "baseline_mean_jct_s": yardsticks[best].mean(),
        "baselines": dict(zip(usual, relative, strict=True)),
        "ratios": {column: _interval(row, config) for column, row in ratios.items()},
        GAIN: {x: _interval(of[POSTERIOR] / of[WHITE_BOX], config) for x, of in gains.items()},
        "by_window": ratios,
        "numbers": numbers,
    }
    return {name: values}


def _interval(ratios: FloatArray, config: HeadroomConfig) -> dict[str, float]:
    return asdict(bootstrap(ratios[:, None], config.samples, config.seed))


def _baselines(config: HeadroomConfig, regime: Regime) -> dict[str, Node]:
    """The usual policies that can run in a regime."""
    policies = {**config.baselines, **(config.stopping if regime.preemption else {})}
    sharing = {"placement": config.sharing} if regime.shares else {}
    found = {
        name: {**node, **sharing} if "placement" in node else node
        for name, node in policies.items()
        if regime.schedulers == 1 or SEVERAL in node
    }
    if not found:
        raise InputError(f"config key 'baselines': none is for {regime.schedulers} schedulers")
    return found


def _contenders(config: HeadroomConfig, regime: Regime, numbers: Numbers) -> dict[str, list[Node]]:
    """What is held against them, by column."""
    if regime.preemption:
        movers = {column: [node] for column, node in config.movers.items()}
        return {**movers, "hindsight": list(config.informed.values())}
    tuned, rollout = {**config.rule, **numbers}, config.rollout
    ahead = {"rollout": [rollout], "true_future": [{**rollout, "posterior": None}]}
    return {
        WHITE_BOX: [config.rule],
        "tuned": [tuned],
        POSTERIOR: [{**config.rule, "posterior": rollout.get("posterior")}],
        **(ahead if regime.rollouts else {}),
        "hindsight": [{**config.hindsight, "base": tuned}],
    }


def _numbers(config: HeadroomConfig, regime: Regime, run: Run) -> Numbers:
    """The best of the rule on the training windows of a regime."""
    search = build_as(NumberSearch, config.model, "model", "search for numbers")
    rule = regime.policy(config.rule)
    problems = config.problems(regime, config.training_window, LEARNING, config.training_windows)
    inputs = {
        "version": VERSION, "problems": [problem_hash(problem) for problem in problems],
        "agent": rule, "search": config.model, "seed": config.seed,
    }  # fmt: skip
    cell = FunctionCell(
        "numbers",
        lambda: {"numbers": tuned(search, rule, problems, config.seed)[0].numbers},
        Path(config.cache),
        inputs,
    )
    return dict(called([cell], run)[cell]["numbers"])


def tuned(
    search: NumberSearch, rule: Node, problems: Sequence[ClusterProblem], seed: int
) -> list[Tried]:
    """All numbers of a rule that were tried, the best first, by the mean log of the mean JCT.

    Raises:
        InputError: the rule has no such number.
    """
    if missing := [name for name in search.numbers if name not in rule]:
        raise InputError(f"config key 'model.numbers.{missing[0]}': is no number of the rule")

    def costs(asked: Sequence[Numbers]) -> FloatArray:
        logs: FloatArray = np.log(mean_jcts(rule, asked, problems)).mean(axis=1)
        return logs

    start = {name: rule[name] for name in search.numbers}
    return search.tried(start, costs, np.random.default_rng(seed))


def mean_jcts(
    rule: Node, asked: Sequence[Numbers], problems: Sequence[ClusterProblem]
) -> FloatArray:
    """(numbers, problems) mean JCTs of a rule, in seconds."""
    policies = [built_policy({**rule, **numbers}, "agent") for numbers in asked]
    found = [[float(one.replay(policy).jct.mean()) for one in problems] for policy in policies]
    return np.array(found)
