"""Jobs and places chosen together, on nodes whose GPUs may be shared."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

import numpy as np
from annotated_types import Gt, Le

from agents.cluster.backfilling import start
from agents.cluster.compiled import joint_choice as kernel
from agents.cluster.compiled import joint_replay as compiled
from agents.cluster.compiled.cells import Cells
from agents.cluster.compiled.durations import Memory, learn
from agents.cluster.compiled.joint_choice import Joint, Rule
from agents.cluster.compiled.joint_replay import Scorer, scorer_of
from agents.cluster.compiled.pairs import (
    EDGE_WIDTH,
    NODE_WIDTH,
    PAIR_WIDTH,
    Pairs,
    Weights,
    find,
    pairs_of,
)
from agents.cluster.hidden_durations import simulator_for
from agents.cluster.migrating.priorities import Priority
from agents.cluster.partitioned import Partitioned, user_numbers
from agents.cluster.policy import Option, PartialGpuShares, Scheduler
from agents.cluster.prediction import Finished
from agents.cluster.rule_numbers import Numbers, read_numbers
from agents.cluster.shipped import scheduler_folder
from agents.cluster.work_left import WorkLeft
from agents.solver import Knowledge
from envs.arrays import FloatArray, IntArray
from envs.bounds import Count, NonNegative, Positive, Share, bounded, bounds_of
from envs.cluster.interference.rates import RateModel, RateTables, of_cases
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import NONE
from envs.cluster.workload.trace import Trace
from models.export.pairs import pair_shapes, read_pairs


@bounded
class PairScorer:
    """Scores what a scheduler could do next; the best is done where it is better than the rule's.

    Guarantees:
        While a job of the scheduler has waited for longer than `patience_s`, the rule decides.

    Args:
        path: a folder of `models.export.pairs`, or a shipped scheduler's name.
        first: pending jobs whose places are scored.
        sure: by which a score must exceed that of what the rule does; in training it was the
            policy's head start.
        patience_s: seconds.

    Raises:
        InputError: the folder is not one of these, or a file in it is damaged or foreign.
    """

    def __init__(self, path: str, first: Count, sure: NonNegative, patience_s: Positive) -> None:
        self.folder = scheduler_folder(path)
        found = read_pairs(self.folder, NODE_WIDTH, EDGE_WIDTH, PAIR_WIDTH)
        self.weights = Weights(
            **{x: np.ascontiguousarray(found[x], np.float32) for x in Weights._fields}
        )
        self.first, self.sure, self.patience_s = int(first), float(sure), float(patience_s)

    def compiled(self, nodes: int) -> Scorer:
        """For compiled code, on so many nodes."""
        return scorer_of(self.weights, nodes, self.first, self.sure, self.patience_s)


def no_scorer(nodes: int) -> Scorer:
    """In the place of one, where the rule decides alone."""
    shapes = pair_shapes(NODE_WIDTH, EDGE_WIDTH, PAIR_WIDTH, 0)
    weights = Weights(**{x: np.zeros(shape, np.float32) for x, shape in shapes.items()})
    return scorer_of(weights, nodes, 0, 0.0, 1.0)


# By their places here the kernel knows them.
Order = Literal["queue", "shortest", "smallest", "dominant"]
Choice = Literal["gain", "tightest", "loosest", "aligned"]


@bounded
class JointChoice(Scheduler):
    """Chooses which job starts and where at once; jobs run to their end, and may share GPUs.

    At every event the first pending jobs of an order are held against all places that are free for
    them: a node, GPUs of a node that others have a fraction of, or for gangs larger than all nodes
    the fewest nodes of a rack, or of all. A place is *good enough* for a job

    * if the job's rate there, had it no neighbours, is at least `fast` of that on the fastest GPUs
      that would hold it,
    * if neighbours leave the job at least `own` of its rate,
    * if each neighbour keeps at least `others` of what it has.

    The best of these pairs of a job and a place starts, until there is none; what has no place that
    is good enough waits for one. Where nothing runs every place is good enough. By "gain" the best
    pair adds most to GPUs times rate of all jobs, beside the job's on the fastest GPUs, less
    `hurry` for each place in the order; "tightest" and "loosest" look for the nodes with the fewest
    and most free GPUs, "aligned" for the largest product of a job's GPUs and those free.

    Durations are averages that forget, as of `RollingDuration`: of finished jobs of the same user
    and gang, else of the same gang, else of all. A gang is the same if it asks for as many GPUs and
    as much of each.

    With a `posterior` it is the mean of that instead, anew at every event. With a `priority`
    pending jobs are in its order, anew at every event, instead of `order`.

    Several schedulers may share a cluster: see `Partitioned`.

    Guarantees:
        No job starves while nodes are up: where no job of a scheduler runs, one starts.

    Source:
        Own work. The choice "aligned" is that of Tetris: Grandl, Ananthanarayanan, Kandula, Rao,
        Akella, "Multi-Resource Packing for Cluster Schedulers", SIGCOMM 2014, section 3.2; the
        order "dominant" progressive filling: Ghodsi, Zaharia, Hindman, Konwinski, Shenker, Stoica,
        "Dominant Resource Fairness", NSDI 2011, algorithm 1.

    Args:
        order: "queue" (by arrival), "shortest" (predicted seconds), "smallest" (predicted seconds
            times GPUs) or "dominant" (the largest part of GPUs, processors or memory of the cluster
            that jobs of the same user hold).
        first: how many pending jobs are looked at.
        joint: the best pair of them all; otherwise the best place of the first job that has one.
        blocking: a job without a place that is good enough keeps those behind it waiting.
        share: fractional jobs join others on their GPUs.
        own: least part of its rate that neighbours leave a job.
        others: least part of its rate that a neighbour keeps.
        fast: least part of its rate on the fastest GPUs.
        choice: what pairs are compared by: "gain", "tightest", "loosest" or "aligned".
        hurry: what a place in the order counts.
        prior_s: seconds that jobs are thought to take where none has finished.
        recency: weight of the latest duration in an average.
        posterior: of what jobs still need; None: averages.
        priority: pending jobs come in this order; None: in `order`.
        scorer: a learned policy that may overrule the rule; None: it is held to.
        believed: how jobs are thought to slow each other down; None: as they do.
        partitioned: how many schedulers share the cluster, and how jobs come to them.
        numbers: a file of `experiments.train task=rule`, whose numbers take the place of those
            above; None: they stay.

    Raises:
        InputError: an order or a choice that there is not; a number out of bounds.
    """

    name = "joint_choice"
    knows: Knowledge = "predictions"

    def __init__(
        self,
        order: Order = "smallest",
        first: Count = 8,
        joint: bool = True,
        blocking: bool = False,
        share: bool = True,
        own: Share = 0.5,
        others: Share = 0.5,
        fast: Share = 0.4,
        choice: Choice = "gain",
        hurry: NonNegative = 0.01,
        prior_s: Positive = 3600.0,
        recency: Annotated[float, Gt(0.0), Le(1.0)] = 0.3,
        posterior: WorkLeft | None = None,
        priority: Priority | None = None,
        scorer: PairScorer | None = None,
        believed: RateModel | None = None,
        partitioned: Partitioned = Partitioned(),
        numbers: str | None = None,
    ) -> None:
        given: Numbers = {
            "order": order, "first": int(first), "joint": joint, "blocking": blocking,
            "share": share, "own": float(own), "others": float(others), "fast": float(fast),
            "choice": choice, "hurry": float(hurry),
        }  # fmt: skip
        if numbers is not None:
            given |= read_numbers(numbers, given, bounds_of(JointChoice))
        codes = {
            "order": get_args(Order).index(given["order"]) if priority is None else kernel.RANKED,
            "choice": get_args(Choice).index(given["choice"]),
        }
        self.rule = Rule(**{**given, **codes})
        self.prior_s, self.recency = float(prior_s), float(recency)
        self.posterior, self.priority, self.scorer = posterior, priority, scorer
        if priority is not None and priority.knows == "durations":
            self.knows = "durations"
        self.believed, self.partitioned = believed, partitioned
        self.schedulers = int(partitioned.schedulers)

    def reset(self, simulator: ClusterSimulator) -> None:
        cluster, trace, state = simulator.cluster, simulator.trace, simulator.state
        believed = believed_tables(simulator, self.believed)
        self._finished = Finished(simulator)
        like = likes(trace)
        if self.posterior is not None:
            self.posterior.reset(simulator)
            like = np.arange(len(trace))[:, None]
        if self.priority is not None:
            self.priority.reset(simulator)
        classes = int(like.max(initial=-1)) + 1
        nodes = cluster.num_nodes
        self._now = Joint(
            believed=believed,
            owners=self.partitioned.owners(simulator, believed),
            memory=Memory(
                like, np.full(classes, np.nan), self.prior_s, self.recency, np.zeros(len(trace))
            ),
            rule=self.rule,
            room=kernel.room_of(nodes, len(state.shares), len(trace)),
        )
        self._scorer = no_scorer(nodes) if self.scorer is None else self.scorer.compiled(nodes)

    def decide(self, simulator: ClusterSimulator) -> None:
        """Learns from jobs that have finished, then every scheduler starts some of its own."""
        self.learn(simulator)
        self._decide(simulator, self._now)

    def learn(self, simulator: ClusterSimulator) -> None:
        """Bring what is thought of durations, and who is in whose queue, up to now."""
        memory, waiting = self._now.memory, simulator.pending()
        if self.posterior is not None or self.priority is not None:
            simulator.settle()
        if self.priority is not None:
            memory.rank[waiting] = self.priority(simulator.state, waiting)
        if self.posterior is not None:
            memory.mean[waiting] = self.posterior.mean(simulator.state, waiting)
        else:
            for job in self._finished.new(simulator):
                learn(memory, int(job), float(simulator.state.jobs["attained"][job]))
        kernel.route(simulator.state, self._now)

    def choice(self, simulator: ClusterSimulator) -> Option | None:
        """What it starts next; None: nothing before the next event."""
        self.learn(simulator)
        for scheduler in range(self.schedulers):
            option = self._next(simulator, self._now, scheduler)
            if option is not None:
                return option
        return None

    def options(self, simulator: ClusterSimulator, first: int) -> list[Option]:
        """Starts worth a thought: what the rule does, and alternatives to it, of every scheduler.

        See `agents.cluster.compiled.pairs.find`.
        """
        pairs = pairs_of(first, simulator.cluster.num_nodes)
        return [
            option
            for scheduler in range(self.schedulers)
            for option in self.candidates(simulator, scheduler, pairs, first)
            if option is not None
        ]

    def candidates(
        self, simulator: ClusterSimulator, scheduler: int, pairs: Pairs, first: int
    ) -> list[Option | None]:
        """What a scheduler could do next, the rule's choice first; None: wait for the next event.

        Args:
            simulator: at a decision point, of which everything has been learned.
            scheduler: its number.
            pairs: written: the same in numbers.
            first: of how many jobs, in their order, alternatives are looked for.
        """
        count = find(simulator.state, self._now, pairs, scheduler, first)
        return [
            None if pairs.job[k] == NONE else (int(pairs.job[k]), _taken(pairs, k, pairs.shares[k]))
            for k in range(count)
        ]

    def play_on(self, simulator: ClusterSimulator, *, hold: bool) -> None:
        """Decide in `simulator`, in which the same has happened so far, from now to its end.

        What is thought of durations, and who is in whose queue, goes on from here, on copies. With
        `hold` nothing starts now.
        """
        memory, owners = self._now.memory, self._now.owners
        joint = self._now._replace(
            memory=memory._replace(mean=memory.mean.copy()),
            owners=owners._replace(home=owners.home.copy(), asked=owners.asked.copy()),
        )
        if not hold:
            self._decide(simulator, joint)
        self._run(simulator, joint)

    @property
    def cells(self) -> Cells:
        """What schedulers see of each other's cells; see `LateViews`."""
        return self._now.owners.cells

    def to_decision(
        self, simulator: ClusterSimulator, cell: int | None = None
    ) -> tuple[int | None, float]:
        """Send the job that was asked about to a cell, and go on to the next decision of `views`.

        Args:
            simulator: since the `reset`, all of whose jobs have gone to cells in this way.
            cell: None: no job was asked about yet.

        Returns:
            The job that is asked about, which `cells` describes, None: nothing is to come; and the
            integral of the number of unfinished jobs over the seconds until then.
        """
        job, passed_s = compiled.run_to_decision(
            simulator.state, simulator.tables, simulator.overheads, self._now, self._scorer,
            self.schedulers, NONE if cell is None else cell,
        )  # fmt: skip
        return None if job == NONE else int(job), float(passed_s)

    def order_by(self, key: FloatArray) -> None:
        """Jobs are thought to take `key` (J,) seconds, until the next `reset`."""
        like = np.arange(len(key))[:, None]
        memory = self._now.memory._replace(like=like, mean=key.copy())
        self._now = self._now._replace(memory=memory)

    def _next(self, simulator: ClusterSimulator, joint: Joint, scheduler: int) -> Option | None:
        job, shares = compiled.next_start(simulator.state, joint, self._scorer, scheduler)
        return None if job == NONE else (job, _taken(joint.room, int(kernel.BEST), shares))

    def _decide(self, simulator: ClusterSimulator, joint: Joint) -> None:
        for scheduler in range(self.schedulers):
            while (option := self._next(simulator, joint, scheduler)) is not None:
                start(simulator, *option)

    def _run(self, simulator: ClusterSimulator, joint: Joint) -> None:
        known = (simulator.tables, simulator.overheads, joint, self._scorer, self.schedulers)
        simulator.lengthen_log()
        while not compiled.run(simulator.state, *known):
            simulator.lengthen_log()

    def run(self, simulator: ClusterSimulator) -> bool:
        """See `Scheduler.run`; False with a posterior or a priority: asked at every event."""
        if self.posterior is not None or self.priority is not None:
            return False
        self.reset(simulator_for(self, simulator))
        self._run(simulator, self._now)
        return True


def _taken(places: kernel.Room | Pairs, row: int, count: int) -> PartialGpuShares:
    """The first shares of a row."""
    columns = (places.nodes, places.gpus, places.sets)
    nodes, gpus, sets = (column[row, :count].tolist() for column in columns)
    joined = tuple(None if one == NONE else one for one in sets)
    return PartialGpuShares(list(zip(nodes, gpus, strict=True)), joined)


def believed_tables(simulator: ClusterSimulator, model: RateModel | None) -> RateTables:
    """Those of a model, None: of the simulator, which numbers its cases alike from now on."""
    true = simulator.tables
    if model is None:
        return true
    believed = model.tables(simulator.trace, simulator.cluster)
    both = np.stack([true.profile, believed.profile], axis=1)
    cases, of_job = np.unique(both, axis=0, return_inverse=True)
    profile = of_job.ravel().astype(np.int32)
    simulator.number_cases(of_cases(true, cases[:, 0], profile))
    return of_cases(believed, cases[:, 1], profile)


def likes(trace: Trace) -> IntArray:
    """(J, 3) classes by which durations are remembered: (user, gang), gang, all.

    A job of an unknown user is alone in its narrowest class.
    """
    gang = np.stack([trace.num_gpus, trace.gpu_milli], axis=1).astype(np.int64)
    columns, classes = [], 0
    for key in (np.column_stack([user_numbers(trace), gang]), gang, np.zeros_like(gang)):
        found, number = np.unique(key, axis=0, return_inverse=True)
        columns.append(number.ravel() + classes)
        classes += len(found)
    return np.ascontiguousarray(np.stack(columns, axis=1), dtype=np.int64)
