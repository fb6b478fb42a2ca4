"""Learning that goes on from the placement of a planner, whose time is part of the budget."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agents.rllib.step.environment import Record, WarmStart
from envs.bounds import Positive
from envs.errors import InputError
from envs.joint.env import JointEnv
from envs.step.order import OneFOneB
from envs.step.plans import Placement
from experiments.learning.subjects import JointSubject, Node, Subject
from experiments.run.provenance import Provenance, file_hash
from experiments.run.targets import build
from experiments.step.plan_file import read_plan, write_plan

WARM_START_FILE = "warm_start.json"  # in the run folder: the planner's plan


@dataclass
class WarmStartConfig:
    """`conf/warm_start`: the planner, what tables call it and its wall time, or none of them."""

    name: str | None
    agent: Any
    budget_s: Positive | None  # seconds

    def __post_init__(self) -> None:
        if (self.agent is None) != (self.budget_s is None):
            told = "of no planner" if self.agent is None else "for a planner"
            raise InputError(f"config key 'warm_start.budget_s': {self.budget_s} s {told}")

    @property
    def method(self) -> str:
        """What PPO is called that goes on from the planner's plan."""
        return f"ppo after {self.budget_s:g} s of {self.name}"

    def within(self, training_s: float | None) -> None:
        """Raise `InputError` where nothing of `training_s` seconds is left to learn."""
        if self.budget_s is not None and training_s is not None and self.budget_s >= training_s:
            raise InputError(
                f"config key 'warm_start.budget_s': {self.budget_s} leaves nothing of "
                f"training.budget_s={training_s}"
            )


@dataclass(frozen=True, eq=False)
class Warmed:
    """A subject whose groups a plan does not divide, and that plan."""

    subject: JointSubject
    start: WarmStart
    provenance: Provenance  # with the plan among its inputs


def require_start(env: Node, subject: Subject) -> None:
    """Raise `InputError` where episodes of `env` cannot start from any plan."""
    if not (isinstance(subject, JointSubject) and env.get("_partial_")):
        raise InputError(f"config key 'warm_start': {env.get('_target_')} starts from no plan")


def warm_start(
    config: WarmStartConfig,
    env: Node,
    subject: Subject,
    folder: Path,
    provenance: Provenance,
    *,
    resume: bool,
) -> Warmed:
    """The placement that the planner of `config` finds for `subject`, as a start.

    It plans on the terms of a baseline: where it only places, on uniform static shares. Its plan is
    kept in `folder`, from where a resumed run takes it. Of the plan the placement is taken over, at
    the rates an episode starts with and in the better of the environment's orders.

    Raises:
        InputError: the planner finds no plan, it does not fit in the environment's orders, or the
            plan kept in `folder` is missing or damaged; or as `require_start`.
    """
    require_start(env, subject)
    make = build(env)
    path, search_s = folder / WARM_START_FILE, 0.0
    if not resume:
        assert config.budget_s is not None
        found, _ = subject.baseline(config.agent, config.budget_s)
        if found.plan is None:
            raise InputError(f"config key 'warm_start.agent': finds no plan ({found.reason})")
        write_plan(path, found.plan, subject.problem, provenance)
        search_s = found.seconds
    begun = time.perf_counter()
    placement = read_plan(path, subject.problem, OneFOneB()).placement
    warmed = JointSubject(subject.problem, make(subject.problem, around=placement.device))
    record = _first_record(warmed.environment(), placement)
    start = WarmStart(record, search_s + time.perf_counter() - begun)
    inputs = {WARM_START_FILE: file_hash(path)}
    return Warmed(warmed, start, provenance.with_inputs(**inputs))


def _first_record(env: JointEnv, placement: Placement) -> Record:
    """`placement`, which no group of `env` divides, simulated as plans of an archive are."""
    env.reset(seed=0)
    fusion = env.instance.fusion
    device = np.zeros(fusion.num_groups, dtype=np.int64)
    device[fusion.group] = placement.device
    env.reset(seed=0, options={"start": device})
    step_time, fits = env.plan_outcome()
    if not fits:
        raise InputError("config key 'warm_start.agent': its placement does not fit into memory")
    return Record({"device": device, "levels": env.levels}, step_time)
