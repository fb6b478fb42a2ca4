"""Plans run on this machine beside the unsplit model; what they took beside what was predicted."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from operator import itemgetter
from statistics import fmean, median
from typing import Annotated, Any

from annotated_types import Ge, MinLen

from envs.bounds import Count, Positive
from envs.errors import InputError
from envs.hybrid.plan import LETTERS
from envs.step.pipeline import Bar, Pipeline, Work, play
from envs.units import MICROSECOND, MILLISECOND
from experiments.execution.exporting import split_files, write_files
from experiments.execution.processes import run_processes
from experiments.execution.split import Split, read_split
from experiments.reporting.tables import Table, write_tables
from experiments.run.artifacts import write_json
from experiments.run.one_run import Result, Run
from experiments.run.provenance import file_hash, stamp

TOLERANCE = 1e-5  # of losses, and of gradients relative to the largest
APART = 1.02  # plans whose step times are closer than this are as fast as each other
FOLDER, TRACE_FILE = "processes", "trace.json"
COLUMNS = (
    "plan", "measured (ms)", "planned (ms)", "of measured", "simulated again (ms)", "of measured",
    "losses differ", "gradients differ",
)  # fmt: skip
NOTE = (
    "Planned: what the plan's file said before. Simulated again: from what its actions took here."
)
ACTIONS = ("plan", "stage", "rank", "work", "count", "ms")
NEVER = -math.inf
Document = dict[str, Any]
Recording = Sequence[Sequence[Bar]]  # the actions of every rank in one step


@dataclass(kw_only=True)
class ExecuteConfig:
    """`conf/execute.yaml`; `layers` and `graph` are objects by `_target_`."""

    # a plan file of experiments.plan problem=pipeline, or a list: they run in turns
    plan: str | Annotated[Sequence[str], MinLen(1)]
    layers: Any
    warm_up: Annotated[int, Ge(1)] = 2  # first steps, not timed
    steps: Count = 10  # that are timed, after those
    # first steps whose losses and gradients are compared with the unsplit model's
    checked: Count = 5
    learning_rate: Positive = 0.1  # of SGD
    limit_s: Positive = 600.0  # wall time of all processes; after that they are ended
    seed: int
    json: bool
    graph: Any = None


def execute(config: ExecuteConfig, run: Run) -> Result:
    """Run the plans in turns, step after step, in one set of processes.

    Raises:
        InputError: torch cannot run a plan, the layers are others or do not divide, or a process
            failed.
    """
    files = [config.plan] if isinstance(config.plan, str) else config.plan
    splits = [read_split(file) for file in files]
    names = [split.name for split in splits]
    if len(set(names)) < len(names):
        raise InputError(f"config key 'plan': two files of one name among {', '.join(names)}")
    hashes = dict(zip(names, map(file_hash, files), strict=True))
    provenance = run.provenance.with_inputs(**hashes)
    folder = run.folder / FOLDER
    for split in splits:
        write_files(folder / split.name, split_files(split, provenance))
    task = {
        "layers": config.layers,
        "plans": {
            split.name: [file, config.graph or split.graph]
            for split, file in zip(splits, files, strict=True)
        },
        "seed": config.seed,
        "processes": max(split.processes for split in splits),
        "steps": config.warm_up + config.steps,
        "checked": config.checked,
        "learning_rate": config.learning_rate,
        "limit_s": config.limit_s,
    }
    seen = run_processes(folder, task)
    found, events = list[Document](), list[Document]()
    for number, split in enumerate(splits):
        document, last = outcome(split, [one["plans"][number] for one in seen], config.warm_up)
        found.append(document)
        events += trace_events(split.name, last)
    trace = stamp({"traceEvents": events}, provenance, kind="trace")
    write_json(run.folder / TRACE_FILE, trace)
    write_tables(run, "Plans that ran", _tables(found), provenance)
    fastest = sorted(found, key=itemgetter("step_time_s"))
    return Result(
        {
            "plans": found,
            "equal": all(x["equal"] for x in found),
            "fastest_first": [x["name"] for x in fastest],
            "same_order": all(
                a["simulated_again_s"] < b["simulated_again_s"]
                for a, b in combinations(fastest, 2)
                if b["step_time_s"] > APART * a["step_time_s"]
            ),
        },
        provenance,
        ("equal", "same_order"),
    )


def outcome(
    split: Split, seen: Sequence[Mapping[str, Any]], warm_up: int
) -> tuple[Document, Recording]:
    """What became of a plan, from what its processes saw; and its last step.

    Process p is rank p // replicas of pipeline p % replicas; actions are those of the first
    pipeline. The first `warm_up` steps are not timed.
    """
    seen = seen[: split.processes]
    bars = [
        [[Bar(Work(b[0]), *b[1:]) for b in step["bars"]] for step in one["steps"]] for one in seen
    ]
    in_order = all(
        [bar[:3] for bar in row] == [action[:3] for action in split.orders[p // split.replicas]]
        for p, steps in enumerate(bars)
        for row in steps
    )
    ends = [one["losses"] for one in seen if one["losses"][0] is not None]
    losses = [sum(step) / len(ends) for step in zip(*ends, strict=True)]
    unsplit = seen[0]["unsplit_losses"]
    loss_difference = max(abs(a - b) for a, b in zip(losses, unsplit, strict=False))
    gradient_difference = max(one["gradient_difference"] for one in seen)
    times = [[one["steps"][k]["times"] for one in seen] for k in range(warm_up, len(bars[0]))]
    seconds = median(max(t[2] for t in step) - min(t[0] for t in step) for step in times)
    averaging = median(max(t[2] for t in step) - max(t[1] for t in step) for step in times)
    recordings = list(zip(*bars[:: split.replicas], strict=True))
    pipeline = measured(split, recordings[warm_up:])
    simulated = play(pipeline, split.orders).makespan + averaging
    planned = split.planned.get("step_time_s", split.planned.get("predicted_s"))
    counts = Counter((a.stage, a.work) for row in split.orders for a in row)
    return {
        "name": split.name,
        "processes": split.processes,
        "equal": in_order and max(loss_difference, gradient_difference) <= TOLERANCE,
        "loss_difference": loss_difference,
        "gradient_difference": gradient_difference,
        "in_order": in_order,
        "step_time_s": seconds,
        "planned_s": planned,
        "planned_of_measured": None if planned is None else planned / seconds,
        "simulated_again_s": simulated,
        "simulated_again_of_measured": simulated / seconds,
        "averaging_s": averaging,
        "planned": dict(split.planned),
        "overhead_s": pipeline.overhead,
        "transfer_s": pipeline.communication,
        "actions": [
            {
                "stage": stage,
                "rank": split.rank[stage],
                "work": work.name.lower(),
                "count": count,
                "seconds": pipeline.taken[work, stage],
            }
            for (stage, work), count in sorted(counts.items())
        ],
    }, recordings[-1]


@dataclass(frozen=True)
class Measured(Pipeline):
    """Stages whose actions take what was measured; whole backward passes apart from their halves.

    Args:
        taken: seconds of each (work, stage).
        overhead: seconds that the runtime takes between two actions of a rank.
    """

    taken: Mapping[tuple[Work, int], float]
    overhead: float

    def seconds(self, work: Work, stage: int) -> float:
        return self.taken[work, stage] + self.overhead


def measured(split: Split, recordings: Sequence[Recording]) -> Measured:
    """Means over the recorded steps of a plan: what a step takes is a sum of them.

    Between two actions of a rank the runtime works, or waits for what another rank sends. Where
    that was finished before the rank's last action was, the gap is overhead; where the rank waited
    for it, what passes from its end to the start of the action is overhead and transfer.
    """
    taken: dict[tuple[Work, int], list[float]] = defaultdict(list)
    between: list[float] = []
    waited: list[float] = []
    for recording in recordings:
        end = {
            (bar.work is Work.FORWARD, bar.stage, bar.micro_batch): bar.finish
            for row in recording
            for bar in row
            if bar.work is not Work.WEIGHT  # no stage waits for it, nor it for another
        }
        for row in recording:
            for number, bar in enumerate(row):
                taken[bar.work, bar.stage].append(bar.finish - bar.start)
                forward = bar.work is Work.FORWARD
                needed = (forward, bar.stage + (-1 if forward else 1), bar.micro_batch)
                arrives = NEVER if bar.work is Work.WEIGHT else end.get(needed, NEVER)
                before = row[number - 1].finish if number else NEVER
                if arrives > before:
                    waited.append(bar.start - arrives)
                elif number:
                    between.append(bar.start - before)
    overhead = fmean(between) if between else 0.0
    transfer = max(0.0, fmean(waited) - overhead) if waited else 0.0
    means = {key: fmean(values) for key, values in taken.items()}
    none, ordered = (0.0,) * len(split.rank), tuple(range(len(split.rank)))
    return Measured(
        split.rank, split.micro_batches, none, none, none, transfer, (ordered,), means, overhead
    )


def trace_events(name: str, recording: Recording) -> list[Document]:
    """A step for Perfetto: a process for a plan, a thread for a rank; microseconds."""
    return [
        {
            "ph": "X",
            "name": f"{bar.stage}{LETTERS[bar.work]}{bar.micro_batch}",
            "pid": name,
            "tid": rank,
            "ts": bar.start / MICROSECOND,
            "dur": (bar.finish - bar.start) / MICROSECOND,
        }
        for rank, bars in enumerate(recording)
        for bar in bars
    ]


def _tables(found: Sequence[Document]) -> list[Table]:
    plans, actions = list[list[str]](), list[list[str]]()
    for x in found:
        times = [f"{x['step_time_s'] / MILLISECOND:.1f}"]
        for key in ("planned", "simulated_again"):
            known = x[f"{key}_s"] is not None
            times.append(f"{x[f'{key}_s'] / MILLISECOND:.1f}" if known else "")
            times.append(f"{x[f'{key}_of_measured']:.3f}" if known else "")
        differ = [f"{x[f'{key}_difference']:.1e}" for key in ("loss", "gradient")]
        plans.append([x["name"], *times, *differ])
        for a in x["actions"]:
            ms = f"{a['seconds'] / MILLISECOND:.3f}"
            actions.append([x["name"], *(str(a[key]) for key in ACTIONS[1:-1]), ms])
    return [Table("Plans", COLUMNS, plans, NOTE), Table("Actions", ACTIONS, actions)]
