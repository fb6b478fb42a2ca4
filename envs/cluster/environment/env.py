"""`meshwright/Cluster-v0`: which job of the queue starts now, and on which servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.cluster.environment.actions import ClusterActions
from envs.cluster.environment.episode import SchedulingEpisode
from envs.cluster.environment.generator import ClusterGenerator, FixedCluster, toy_cluster
from envs.cluster.environment.instance import ClusterBounds, OwnCredit
from envs.cluster.environment.observation import ClusterGraph, ClusterObservation
from envs.cluster.environment.parallel_env import TOY_SIZES, ClusterParallelEnv, WithEpisode
from envs.cluster.environment.routing import ConsecutiveRacks, OneQueue
from envs.cluster.nodes import Cluster
from envs.cluster.workload.trace import Trace
from envs.parallel_env import OneAgentEnv

METADATA: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 4}


class ClusterEnv(WithEpisode, OneAgentEnv[ClusterGraph]):
    """Start the jobs of a queue on the servers of a cluster, one decision at a time.

    ## Description
    Jobs come to a cluster and wait in its queue. A job is a gang: it runs on all of its GPUs at
    once, or not at all. `ClusterSimulator` plays what happens; its rate
    model says how fast a job runs on which servers and beside whom, its overheads what preemption
    costs, and nodes may fail and come back. Whenever something has happened (completions, nodes,
    arrivals, all of one instant) the agent starts jobs one after another, and then waits: that lets
    time pass until something happens again. Between two waits no time passes.

    With preemption (`actions`) it can also stop a running job, which keeps its progress and goes to
    the tail of the queue.

    ## Observation Space
    `Dict`: keys, dtypes, shapes and features stand in
    `ClusterObservation`. Added is `action_mask` (int8 (A,), 1 = allowed;
    also in `info`). To wait is allowed as long as something is to come: a job that runs or is to
    arrive, a node that is to fail or come back; it is all that is allowed when nothing fits. When
    nothing is to come and something fits, it is not. So at least one action is always allowed.

    ## Action Space
    `Discrete(W G + P + 1)`, numbered as `ClusterActions` says: action w G + g
    starts the w-th job of the window on server group g (a server, a rack, or all servers); with
    preemption action W G + p stops the p-th running job shown, which is allowed once it has run
    since it was started; the last action waits. An action outside the mask changes nothing.

    ## Reward
    The sum of the named, weighted terms of `ClusterReward`; each is in `info`
    as `reward_<term>`. With the default weights an episode collects minus the sum of the jobs'
    completion times. In `meshwright/ClusterToy-v0` there is one job in second 0; four are there in
    second 1, none of which can finish before the next arrives in second 2. So the first wait has
    the reward -1 x (1 - 0) = -1, and the one in second 1 -4 x (2 - 1) = -4.

    ## Starting State
    A new instance from the generator (`self.np_random` is its only source of randomness), at the
    first arrival, with nothing running. Before that nothing is decided and nothing counts.

    ## Episode End
    `terminated` when all jobs have finished. `truncated` after `horizon` decisions, or where jobs
    wait that can never start, because the nodes they need have failed for good.

    ## Information
    Flat, after `reset` and every step: `now_s` (seconds), `jobs` (of the episode), `arrived`,
    `pending`, `running`, `finished` (numbers of jobs), `free_gpus`, `decisions`, `action_mask`, and
    after a step `reward_<term>`.

    ## Arguments
    * `generator`: yields the instance of each episode; default: random jobs on eight servers
      (`envs.cluster.environment.generator.default_generator`).
    * `rates`: the rate model; default: no interference.
    * `overheads`: what preemption and failures cost; default: nothing.
    * `actions`: server groups, preemption and the longest wait.
    * `observation`: called with the generator's bounds, makes the builder of observations, which
      says too whether durations are known.
    * `reward`: the terms and their weights.
    * `horizon`: most decisions of an episode.
    * `keep_runs`: whether `schedule()` has the log of all runs.
    * `render_mode`: `"rgb_array"` draws who holds which GPUs now.

    ## Guarantees
    At least one action is always allowed; equal seeds give equal episodes; `check_env` has nothing
    to say. The toy's optimum is proved by trying all schedules.

    ## Source
    Own environment; the question is that of Mao et al., "Learning Scheduling Algorithms for Data
    Processing Clusters", SIGCOMM 2019. The interface is Gymnasium's.

    ## Version History
    * v0: first version.
    """

    metadata = METADATA
    parallel: ClusterParallelEnv

    def __init__(
        self,
        generator: ClusterGenerator | None = None,
        *,
        observation: Callable[[ClusterBounds], ClusterObservation] = ClusterObservation,
        **arguments: Any,
    ) -> None:
        parallel = ClusterParallelEnv(
            generator,
            schedulers=1,
            partition=ConsecutiveRacks(),
            routing=OneQueue(),
            credit=OwnCredit(),
            forwards=0,
            forward_s=0.0,
            state_in_observation=False,
            observation=lambda bounds, peers: observation(bounds),
            **arguments,
        )
        super().__init__(parallel)

    @classmethod
    def of_trace(
        cls,
        cluster: Cluster | Sequence[Cluster],
        trace: Trace | Sequence[Trace],
        *,
        windows: Callable[[Any, Any], ClusterGenerator] = FixedCluster,
        **arguments: Any,
    ) -> ClusterEnv:
        """An environment about the jobs of a trace on a cluster.

        Args:
            cluster: the nodes; several where `windows` takes several.
            trace: the jobs; several traces where `windows` takes several.
            windows: what of them an episode is about; default: all.
            arguments: as of the constructor.
        """
        return cls(windows(cluster, trace), **arguments)

    @property
    def episode(self) -> SchedulingEpisode:
        """The jobs of this episode, as far as they have come."""
        return self.parallel.episode

    @property
    def window(self) -> NDArray[np.int32]:
        """(W,) job numbers in the window, -1 beyond them."""
        window: NDArray[np.int32] = self.episode.book.window[0].copy()
        return window


def preemptive_environment(**arguments: Any) -> ClusterEnv:
    """`meshwright/ClusterPreemptive-v0`: `ClusterEnv` in which running jobs can be preempted."""
    actions = ClusterActions(preempt_after_s=0.0, longest_wait_s=3600.0)
    return ClusterEnv(**{"actions": actions, **arguments})


def toy_environment(
    # one level of weight for each channel
    actions: ClusterActions = ClusterActions(racks=False, all_servers=False),
    **arguments: Any,
) -> ClusterEnv:
    """`meshwright/ClusterToy-v0`: `ClusterEnv` about `toy_cluster`, whose optimum is known."""
    return ClusterEnv.of_trace(
        *toy_cluster(), **{"observation": TOY_SIZES, "actions": actions, **arguments}
    )
