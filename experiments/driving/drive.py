"""A scheduler acts on the jobs of a Slurm partition, or watches them."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from omegaconf import OmegaConf

from agents.cluster.live import ClusterDecider, PolicyDecider, StateDecider
from agents.cluster.policy import Scheduler
from agents.cluster.shipped import shipped_schedulers
from agents.exported import load_decider
from envs.bounds import Positive, bounded
from envs.cluster.interference.rates import NoInterference
from envs.cluster.nodes import UNLIMITED, Cluster
from envs.cluster.simulation.cluster import FREE_OF_CHARGE
from envs.cluster.slurm.commands import Run as Held
from envs.cluster.slurm.commands import Slurm, SlurmError
from envs.cluster.slurm.state import Known
from envs.cluster.workload.trace import Trace
from envs.errors import InputError
from experiments.cluster.problem import ClusterProblem, Player, built_policy
from experiments.config.config_source import job_config, options
from experiments.driving.driver import AuditLog, Driver, Limits
from experiments.run.one_run import Result, Run

AUDIT = "audit.jsonl"
STOP = "stop"  # of the run folder


@bounded
@dataclass(kw_only=True)
class DriveConfig:
    """`conf/drive.yaml`."""

    # an exported scheduler's folder, a shipped one or a policy of conf/agent by its name
    checkpoint: str = "unknown_durations"
    cluster: Literal["slurm"] = "slurm"
    partition: str  # of Slurm; no other is looked at
    # of the names of the jobs that it decides on (sbatch --job-name); '' is all jobs of the
    # partition, which must be said where it acts
    prefix: str | None = None
    # true: it acts on nothing, and says what its schedule would have been beside Slurm's
    shadow: bool = False
    dry_run: bool = False  # true: it decides once, acts on nothing and ends
    # where it is written how long jobs take, for policies that know it: time_limit, or
    # `duration_s=<number>` in the job's comment
    durations: Known = "nothing"
    restart_s: float = 0.0  # seconds before a stopped job progresses again
    for_s: Positive | None = None  # seconds after which it ends
    stop_file: str | None = None  # ends it as soon as it is there; null: `stop` in the run folder
    release_at_end: bool = False  # true: jobs that still wait are left to Slurm
    slurm_conf: str | None = None  # null: this machine's
    limits: Limits = field(default_factory=Limits)
    placement: Any
    seed: int
    json: bool


def drive(config: DriveConfig, run: Run) -> Result:
    """Drive until something ends it."""
    stop = Path(config.stop_file or run.folder / STOP)
    watches = config.shadow or config.dry_run
    for key, wrong, message in (
        ("dry_run", config.shadow and config.dry_run, "goes without shadow"),
        ("stop_file", stop.exists(), f"{stop} is there already: remove it"),
        ("prefix", config.prefix is None and not watches,
         "is missing: which jobs may it act on? prefix='' is all of the partition"),
        ("slurm_conf", bool(config.slurm_conf) and not Path(config.slurm_conf or "").is_file(),
         f"{config.slurm_conf} is no file"),
    ):  # fmt: skip
        if wrong:
            raise InputError(message, file=f"config key '{key}'")
    slurm = Slurm(config.partition, config.slurm_conf)
    decider, policy = decider_of(config.checkpoint, config.placement, config.seed)
    if decider.knows_durations and config.durations == "nothing":
        reason = f"{config.checkpoint!r} goes by how long jobs take: give time_limit or comment"
        raise InputError(reason, file="config key 'durations'")
    decider.warm()
    try:
        recorded, nodes = slurm.find_record(), slurm.nodes()
    except SlurmError as error:
        raise InputError(f"Slurm does not answer ({error})") from error
    if not recorded:
        run.console.say("Slurm writes down nowhere what ends (JobCompType=jobcomp/filetxt): of past"
                        " runs nothing is known")  # fmt: skip
    if not nodes:
        reason = f"there is no partition {config.partition!r}, or it has no node with GPUs"
        raise InputError(reason, file="config key 'partition'")
    audit, begun = AuditLog(run.folder / AUDIT), time.time()
    driver = Driver(
        slurm, decider, audit, acts=not watches, prefix=config.prefix or "",
        limits=config.limits, durations=config.durations, restart_s=config.restart_s,
        say=run.console.say,
    )  # fmt: skip
    about = {"partition": config.partition, "prefix": config.prefix, "acts": driver.acts}
    audit.write("begun", checkpoint=config.checkpoint, **about)
    run.console.live = True
    try:
        if config.dry_run:
            driver.step(always=True)
            for action in driver.actions:
                run.console.say(f"would {action['action']} job {action['job']}: {action['on']}")
        else:
            run.console.say(
                f"decides for {config.partition} until Ctrl-C, or until {stop} is there"
            )
            driver.run(ending(stop, config.for_s))
    except KeyboardInterrupt:
        pass  # as any other end: what was found is told
    values: dict[str, object] = {"audit": str(audit.path), **audit.counts}
    if config.release_at_end and driver.acts:
        values["released"] = driver.release_all()
    if config.shadow:
        values |= regret(policy, slurm, driver.gpus, begun)
    return Result(values, run.provenance)


@dataclass
class ending:  # noqa: N801, a question
    """Whether a file is there, or the time is over."""

    file: Path
    for_s: float | None
    begun: float = field(default_factory=time.monotonic)

    def __call__(self) -> bool:
        over = self.for_s is not None and time.monotonic() - self.begun >= self.for_s
        return over or self.file.exists()


def decider_of(name: str, placement: Any, seed: int) -> tuple[StateDecider, Scheduler | Player]:
    """What decides on live states, and the same as a policy of replays.

    Raises:
        InputError: it is neither a folder, nor shipped, nor a policy; or none of clusters.
    """
    if name in options("agent") and name not in shipped_schedulers() and not Path(name).is_dir():
        node = {"agent": job_config(f"agent/{name}"), "placement": placement, "seed": seed}
        plain: Any = OmegaConf.to_container(OmegaConf.create(node), resolve=True)
        policy = built_policy(plain["agent"], "checkpoint")
        if isinstance(policy, Player):
            raise InputError("name the folder itself", file="config key 'checkpoint'")
        return PolicyDecider(policy), policy
    decider = load_decider(name)
    if not isinstance(decider, ClusterDecider):
        raise InputError(f"{name!r} decides on no cluster", file="config key 'checkpoint'")
    return decider, decider.scheduler


def regret(
    policy: Scheduler | Player, slurm: Slurm, gpus: Mapping[str, int], begun: float
) -> dict[str, object]:
    """What Slurm made of the jobs that came and ended since, beside what the policy would have.

    Both begin with an empty cluster of which these jobs are all; a `regret_s` above 0 is what the
    policy would have saved in the mean.
    """
    past = defaultdict[str, list[Held]](list)
    for held in slurm.runs():
        past[held.job].append(held)
    ended = sorted(
        (held[0].submit_s, held[-1].end_s, sum(one.seconds for one in held),
         held[-1].gpus or gpus.get(job, 0))
        for job, held in past.items()
        if job in gpus and held[0].submit_s >= begun and held[-1].state != "PENDING"
    )  # fmt: skip
    rows = np.array([row for row in ended if row[3] and row[2] > 0])
    if not len(rows):
        return {"jobs": 0}  # that came and ended meanwhile
    submit, end, seconds, number = rows.T
    submit_s = (submit - submit[0]).astype(np.int64)
    trace = Trace.of("shadow", submit_s, seconds.astype(np.int64), number.astype(np.int64))
    nodes = slurm.nodes()
    types = list(dict.fromkeys(node.gpu_type for node in nodes))
    cluster = Cluster(
        name=slurm.partition,
        gpus=np.array([node.gpus for node in nodes], np.int32),
        rack=np.zeros(len(nodes), np.int32),
        gpu_type=np.array([types.index(node.gpu_type) for node in nodes], np.int32),
        gpu_types=tuple(types),
        cpu_milli=np.full(len(nodes), UNLIMITED, np.int64),
        memory_mib=np.full(len(nodes), UNLIMITED, np.int64),
    )
    problem = ClusterProblem(cluster, trace, NoInterference(), FREE_OF_CHARGE, None)
    found, slurms = float(problem.replay(policy).jct.mean()), float((end - submit).mean())
    means = {"slurm_mean_jct_s": slurms, "policy_mean_jct_s": found, "regret_s": slurms - found}
    return {"jobs": len(rows), **means}
