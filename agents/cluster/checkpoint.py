"""What was exported schedules the jobs of a trace: the network of a policy, or a plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import yaml
from annotated_types import Ge
from numpy.typing import NDArray
from pydantic import AliasPath, Field

from agents.cluster.checkpoint_expert import plan_of, rebuilt
from agents.cluster.greedy_action import greedy_action
from agents.cluster.migrating.expert import MigrationExpert
from agents.cluster.migrating.policy import Migrating
from agents.cluster.replay import StuckError, replay
from agents.cluster.shipped import scheduler_folder
from agents.solver import Knowledge
from envs.bounds import Count, NonNegative, bounded
from envs.cluster.environment.actions import (
    Bookkeeping,
    ClusterActions,
    Layout,
    LeastService,
    QueueOrder,
    ShortestRemainingTime,
    SmallestRemainingService,
    WindowOrder,
)
from envs.cluster.environment.episode import SchedulingEpisode
from envs.cluster.environment.instance import ClusterBounds, ClusterInstance
from envs.cluster.environment.observation import ADVISED, ClusterGraph, ClusterObservation
from envs.cluster.environment.routing import MixedRacks, QueueRouting, RackOwners, Routing
from envs.cluster.interference.rates import RateModel
from envs.cluster.nodes import MAX_GPU_TYPES, Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import Overheads, Schedule
from envs.cluster.workload.trace import Trace
from envs.errors import InputError, in_one_line, require_one_of
from envs.files import read_content
from envs.forms import Form, read_form
from models.export.checkpoint import (
    CONFIG_FILE,
    PLAN,
    SPEC_FILE,
    OnnxRuntime,
    SchedulerCheckpoint,
    load_checkpoint,
)


class Trimmed:
    """An observation without padding among jobs and shares, at least one row of each.

    Args:
        graph: an observation.
        mask: (A,) of actions.
        table: how they are numbered.

    Attributes:
        observation: the same with fewer rows, and its `action_mask` (B,).
        actions: (B,) the action in the numbering of `table` of each that is left.
        window: pending jobs left.
    """

    def __init__(self, graph: ClusterGraph, mask: NDArray[np.int8], table: Layout) -> None:
        kept = {name: max(int(graph[f"{name}_mask"].sum()), 1) for name in TRIMMED}
        self.window = kept["pending"]
        starts = np.arange(self.window * table.groups)
        first = table.window * table.groups
        forwards = first + np.arange(self.window * table.peers)
        first += table.window * table.peers
        preempts = first + np.arange(min(kept["running"], table.preemptible))
        self.actions = np.concatenate([starts, forwards, preempts, [table.size - 1]])
        self.observation: dict[str, NDArray[Any]] = dict(graph)
        for name, rows in kept.items():
            for key in (f"{name}_features", f"{name}_mask"):
                self.observation[key] = graph[key][:rows]
        share = graph["share_index"][:, : kept["share"]].copy()
        share[0] = np.minimum(share[0], kept["running"])  # padding points behind the last row
        self.observation["share_index"] = share
        self.observation["action_mask"] = mask[self.actions]
        if ADVISED in graph:
            advised = np.searchsorted(self.actions, graph[ADVISED])  # actions ascend
            assert self.actions[advised] == graph[ADVISED], "an action on what is not shown"
            self.observation[ADVISED] = advised


TRIMMED = ("pending", "running", "share")
WINDOW_ORDERS = {
    order.__name__: order
    for order in (QueueOrder, LeastService, ShortestRemainingTime, SmallestRemainingService)
}


@bounded
class CheckpointScheduler:
    """Decides as a checkpoint folder says: by the network of a policy, or by a plan.

    A plan (`migrating.policy.Migrating`) decides on all jobs at once. Where several schedulers
    share the cluster, each does what the plan of its own racks suggests.

    A network plays an episode of `envs.cluster`. What it sees and may do is read from the
    configuration of its training, which lies in the folder: known durations, history, order of the
    window, view delay, server groups, preemption, longest wait. The expert that it may be shown is
    described by `spec.json` (`checkpoint_expert`). Nothing of these files is instantiated. Sizes
    are free: all of the cluster's servers are shown, all running jobs, and as many pending jobs as
    `window` allows. The columns of GPU types are those of the cluster, in its order.

    Knows:
        predictions: what jobs that have finished tell of the others. So it is with the shipped one;
        another knows what its training showed it, as its `config.yaml` says.

    Guarantees:
        None proved; only actions that the mask allows are taken.

    Source:
        Own work: `docs/learned_schedulers.md`. Graph policies of clusters were introduced by Mao,
        Schwarzkopf, Venkatakrishnan, Meng, Alizadeh, "Learning Scheduling Algorithms for Data
        Processing Clusters", SIGCOMM 2019.

    Args:
        checkpoint: the folder, or the name of a shipped scheduler (`agents.cluster.shipped`).
        window: pending jobs shown to a network, or to each of several schedulers, at most.
        schedulers: how many share the cluster, each with its own racks and queue; all have the
            same policy.
        partition: who owns which racks.
        routing: to whose queue jobs come.
        forwards: how often a job can be forwarded to another queue.
        forward_s: seconds for which it is then on its way.
        seed: of the routing.

    Raises:
        InputError: the folder is no checkpoint of a cluster's scheduler, its configuration does not
            say what it was trained on.
    """

    name = "checkpoint"

    def __init__(
        self,
        checkpoint: str = "unknown_durations",
        window: Count = 512,
        schedulers: Count = 1,
        partition: RackOwners = MixedRacks(),
        routing: Routing = QueueRouting(),
        forwards: Annotated[int, Ge(0)] = 1,
        forward_s: NonNegative = 0.0,
        seed: int = 0,
    ) -> None:
        self.checkpoint = load_checkpoint(scheduler_folder(checkpoint))
        self.mover: Migrating | None = None
        self.expert: MigrationExpert | None
        if PLAN in self.checkpoint.spec:
            self.expert, self.mover = plan_of(self.checkpoint)
            # What has been started runs on for a minute, lest it stops again at once.
            actions = ClusterActions(preempt_after_s=60.0, longest_wait_s=self.mover.wake_s)
            self.trained = Training(actions)
        else:
            self.expert, self.trained = rebuilt(self.checkpoint), _training(self.checkpoint)
        self.window, self.schedulers = window, schedulers
        self.partition, self.routing = partition, routing
        self.forwards, self.forward_s = forwards, forward_s
        self.seed = seed
        self._run = None if self.mover is not None else OnnxRuntime(self.checkpoint)
        expert = self.expert is not None and self.expert.knows == "durations"
        looks = self.trained.known_durations or expert
        self.knows: Knowledge = "durations" if looks else "predictions"

    def play(
        self,
        cluster: Cluster,
        trace: Trace,
        *,
        rates: RateModel,
        overheads: Overheads,
        incidents: NDArray[np.void] | None = None,
        keep_runs: bool = False,
    ) -> Schedule:
        """The schedule that the policy makes of `trace` on `cluster`, greedily.

        Raises:
            InputError: the cluster has more GPU types than the policy was made for, or a job can
                never run.
            StuckError: jobs wait for ever.
        """
        if self.mover is not None and self.schedulers == 1:
            how: Any = {"overheads": overheads, "incidents": incidents, "keep_runs": keep_runs}
            return replay(self.mover, cluster, trace, rates=rates, **how)
        episode = self.episode(cluster, trace, rates, overheads, incidents, keep_runs)
        while not episode.ended:
            if self.step(episode) and not episode.wait():
                raise StuckError(self.name, episode.simulator)
        return episode.simulator.schedule()

    def episode(
        self,
        cluster: Cluster,
        trace: Trace,
        rates: RateModel,
        overheads: Overheads,
        incidents: NDArray[np.void] | None = None,
        keep_runs: bool = False,
        begin: Callable[[ClusterSimulator, Bookkeeping], None] | None = None,
    ) -> SchedulingEpisode:
        """An episode about the trace, at its first event or where `begin` puts it."""
        bounds = ClusterBounds.of(cluster).part(self.schedulers)
        types = self.trained.gpu_types
        if bounds.gpu_types > types:
            message = f"{bounds.gpu_types} GPU types, the policy was made for {types}"
            raise InputError(message, file=f"cluster {cluster.name}", field="gpu_types")
        # Jobs, and shares of jobs, that can run at once at most.
        least = max(int(trace.gpu_milli.min(initial=1000)), 1)
        without = int((trace.num_gpus == 0).sum())
        shares = int(np.clip(trace.num_gpus, 1, cluster.num_nodes).sum())
        most = max(min(cluster.num_gpus * 1000 // least + without, shares), 1)
        shown = ClusterObservation(
            replace(bounds, gpu_types=types),
            self.schedulers - 1,
            window=min(self.window, len(trace)),
            running=most,
            shares=most,
            known_durations=self.trained.known_durations,
            order=self.trained.order,
            history=self.trained.history,
            expert=self.expert,
            view_delay_s=self.trained.view_delay_s if self.schedulers > 1 else None,
        )
        rng = np.random.default_rng(self.seed)
        return SchedulingEpisode(
            ClusterInstance(cluster, trace, incidents),
            self.partition(cluster, self.schedulers),
            self.routing(trace, self.schedulers, rng),
            shown.bounds,
            shown,
            self.trained.actions,
            rates=rates,
            overheads=overheads,
            forwards=self.forwards,
            forward_s=self.forward_s,
            keep_runs=keep_runs,
            begin=begin,
        )

    def step(self, episode: SchedulingEpisode) -> bool:
        """Every scheduler acts once; whether all of them wait."""
        seen = [episode.observe(number) for number in range(self.schedulers)]
        waits = episode.action_table.size - 1
        chosen = [self.choose(graph, mask, episode)[0] for graph, mask in seen]
        for number, action in enumerate(chosen):
            episode.act(number, action)
        return all(action == waits for action in chosen)

    def choose(
        self, graph: dict[str, NDArray[Any]], mask: NDArray[np.int8], episode: SchedulingEpisode
    ) -> tuple[int, float]:
        """The action of a scheduler that sees `graph`, and the probability it has there."""
        if mask.sum(dtype=np.int64) == 1:
            return int(mask.argmax()), 1.0
        if self._run is None:
            return int(graph[ADVISED][0]), 1.0
        table = episode.action_table
        short = Trimmed(graph, mask, table)
        allowed = short.observation["action_mask"] == 1
        logits = np.where(allowed, self._run(short.observation)[0], -np.inf)
        by_job = self.expert is None
        chosen = greedy_action(logits, short.window, table.groups, by_job)
        weights = np.exp(logits - logits.max())
        return int(short.actions[chosen]), float(weights[chosen] / weights.sum())


@dataclass(frozen=True)
class Training:
    """The environment that a policy was trained in.

    The defaults go for a plan, where several schedulers follow it job by job.
    """

    actions: ClusterActions
    known_durations: bool = False
    history: int = 0
    order: WindowOrder = QueueOrder()
    view_delay_s: float | None = None
    gpu_types: int = MAX_GPU_TYPES
    restart_s: float = 0.0  # where the state does not say; no decision of a plan depends on it


def _at(*path: str) -> Any:
    """A value inside of other mappings."""
    return Field(validation_alias=AliasPath(*path))


class _Part(Form, extra="ignore"):
    """What is read of a file that says more."""


class _Actions(_Part):
    servers: bool
    racks: bool
    all_servers: bool
    preempt_after_s: float | None
    longest_wait_s: float | None


class _Overheads(_Part):
    restart_s: Annotated[float, Field(ge=0.0)]


class _Config(_Part):
    known_durations: bool = _at("env", "observation", "known_durations")
    history: int = _at("env", "observation", "history")
    order: str = _at("env", "observation", "order", "_target_")
    view_delay_s: float | None = Field(
        None, ge=0.0, validation_alias=AliasPath("env", "view_delay_s")
    )
    actions: _Actions = _at("env", "actions")
    overheads: _Overheads | None = None


class _Model(_Part):
    types: Annotated[int, Field(ge=1, le=MAX_GPU_TYPES)] = _at("widths", "types")


def _training(checkpoint: SchedulerCheckpoint) -> Training:
    """What the configuration of a checkpoint's training says."""
    file, spec = checkpoint.folder / CONFIG_FILE, checkpoint.folder / SPEC_FILE
    try:
        document = yaml.load(read_content(file), Loader=SafeLoader)
    except (RecursionError, ValueError, yaml.YAMLError) as error:
        raise InputError(f"cannot be read ({in_one_line(error)})", file=file) from error
    config = read_form(_Config, document, file)
    order = config.order.rpartition(".")[2]
    require_one_of(order, WINDOW_ORDERS, file=file, field="order")
    if config.actions.preempt_after_s == 0:
        message = "jobs preempted at once could be started and stopped for ever"
        raise InputError(message, file=file, field="env.actions.preempt_after_s")
    return Training(
        ClusterActions(**config.actions.model_dump()),
        config.known_durations,
        config.history,
        WINDOW_ORDERS[order](),
        config.view_delay_s,
        read_form(_Model, checkpoint.spec.get("model"), spec, inside="model").types,
        0.0 if config.overheads is None else config.overheads.restart_s,
    )


# The same in C, where PyYAML has it.
SafeLoader: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
