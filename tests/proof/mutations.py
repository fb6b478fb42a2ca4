"""Does the suite notice a fault? Forty faults in words, and the test that catches each.

    python -m tests.proof.mutations [--only WORD] [--check]

A fault breaks a rule of an engine. Engine, rule and how it is broken are told in words that hold
whatever the code looks like; `floor`, `old` and `new` say how the fault is expressed in the code of
today. Whoever rewrites a room expresses its faults anew and leaves the words as they are.

Every fault is written into a clone of HEAD. The tests of the touched package run first, with `-x`,
then the rest of `make test`. `--only` takes the faults whose words hold a word, `--check` only
looks whether all texts are still found. The exit code is 1 where more than four go unseen.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.paths import ROOT

UNSEEN_ALLOWED = 4
LONGEST_S = 1800
PYTEST = (
    "-m", "pytest", "-x", "-n", "2", "--dist", "worksteal",
    "--hypothesis-profile=unshrunk", "--hypothesis-seed=0",
    "--ignore=tests/proof/test_mutations.py",  # which looks for the sound texts
)  # fmt: skip


@cache
def texts(folder: Path) -> list[tuple[Path, str]]:
    """The modules below a folder, as they were before any fault."""
    return [(path, path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.py"))]


@dataclass(frozen=True)
class Fault:
    """`broken` says what happens instead of `rule`.

    Today `old` stands once below the folder `floor` and becomes `new`.
    """

    engine: str
    rule: str
    broken: str
    floor: str
    old: str
    new: str

    @property
    def words(self) -> str:
        return f"{self.engine}: {self.rule} {self.broken}"

    def file(self, root: Path) -> Path:
        """The one file that holds `old`."""
        found = [p for p, text in texts(root / self.floor) for _ in range(text.count(self.old))]
        if len(found) != 1:
            sys.exit(f"{self.words}\n{self.old!r} stands {len(found)} times below {self.floor}/")
        return found[0]


FAULTS = (
    Fault(
        "step price",
        "A transfer holds both its ports while it lasts.",
        "It does not hold its receiving port.",
        "envs",
        "port_free[s] = at\n                        port_free[r] = at\n                    stamp[",
        "port_free[s] = at\n                    stamp[",
    ),
    Fault(
        "incremental step price",
        "What a change of a plan moves in time is timed anew, however late it comes in the step.",
        "Timing stops at the first stretch of operators that stays as it was.",
        "envs",
        "_keep(free, p // _BLOCK, now) and p > reach",
        "_keep(free, p // _BLOCK, now)",
    ),
    Fault(
        "max-min rates",
        "Flows of a higher class share the network first, the others what these leave.",
        "Classes are served in the order in which the flows stand.",
        "envs",
        'active = np.argsort(priority, kind="stable")',
        "active = np.arange(len(priority))",
    ),
    Fault(
        "fluid network",
        "A flow takes bandwidth only when its latency has passed.",
        "It takes bandwidth from its arrival on.",
        "envs",
        "entry = flows.arrival + flows.latency",
        "entry = flows.arrival",
    ),
    Fault(
        "coflows",
        "On what earlier coflows leave, the flows of a coflow get rates at which all end together.",
        "The rates are those of empty ports, as far as there is room.",
        "experiments/papers/coinnetflow",
        "needed = max(needed, load[c, p] / room[p])",
        "needed = max(needed, load[c, p] / capacity)",
    ),
    Fault(
        "partition",
        "A device receives a tensor once, however many of its operators read it.",
        "It receives the tensor once for each reader.",
        "envs",
        "received = np.unique(uses[leaves, 0] * count + target[leaves])",
        "received = uses[leaves, 0] * count + target[leaves]",
    ),
    Fault(
        "hybrid plans",
        "Gradients of a stage are summed when all its replicas have them.",
        "They are summed when the first replica has them.",
        "envs",
        "self._tensors += [(maker, op, 0.0) for maker in last.values()]",
        "self._tensors += [(maker, op, 0.0) for maker in [*last.values()][:1]]",
    ),
    Fault(
        "synchronisation",
        "A vertex passes a sum on when every sender below it has brought its part.",
        "It passes the sum on when any of them has.",
        "envs",
        "while state.complete[gate] == high - low and",
        "while state.complete[gate] > 0 and",
    ),
    Fault(
        "asynchronous training",
        "No worker runs further ahead of the slowest than its policy allows.",
        "Workers are held against the fastest, so that nobody waits.",
        "experiments",
        "made - made.min() <= policy.ahead",
        "made - made.max() <= policy.ahead",
    ),
    Fault(
        "bandwidth",
        "A transfer that lasts over a change of rates has sent what it sent before.",
        "At the change it begins again with all its bytes.",
        "envs",
        "left -= rate * (end - at)",
        "left -= 0.0",
    ),
    Fault(
        "cluster replay",
        "A job works only when its start overhead has passed.",
        "Its end is told as if it had worked from its start on.",
        "envs",
        "max(now, record.ready) + record.remaining / record.rate",
        "now + record.remaining / record.rate",
    ),
    Fault(
        "cluster replay",
        "When a node fails, its jobs lose what they did since their last checkpoint.",
        "They keep all that they did.",
        "envs",
        "record.attained = reached * overheads.checkpoint_s",
        "record.attained = record.attained",
    ),
    Fault(
        "cluster replay",
        "A job's processors are dealt out with its GPUs; no node gives less than its part.",
        "The part of a node is rounded down.",
        "envs",
        "return amount if gpus == of else -(-amount * gpus // of)",
        "return amount if gpus == of else amount * gpus // of",
    ),
    Fault(
        "locality",
        "A gang is slowed down by how far it is spread: one node, one rack or several racks.",
        "Several racks count as one.",
        "envs",
        "if nodes[shares[share].node].rack != rack:\n            return SEVERAL_RACKS",
        "if nodes[shares[share].node].rack != rack:\n            return ONE_RACK",
    ),
    Fault(
        "interference",
        "A gang goes as fast as on the node where its neighbours slow it down most.",
        "It goes as fast as on one of its nodes, whichever is looked at last.",
        "envs",
        "least = min(least, left)",
        "least = left",
    ),
    Fault(
        "trace readers",
        "A job of several instances holds the GPUs of all of them.",
        "It holds those of one instance.",
        "envs",
        "num_gpus = instances * np.maximum(share // WHOLE_GPU, 1)",
        "num_gpus = np.maximum(share // WHOLE_GPU, 1)",
    ),
    Fault(
        "cluster environment",
        "Only jobs that wait count as queueing.",
        "Jobs that run count as well.",
        "envs",
        '"queueing": -passed[QUEUED],',
        '"queueing": -passed[UNFINISHED],',
    ),
    Fault(
        "cluster environment",
        "What is lost in a wait grows with the seconds that pass.",
        "Every wait costs the same, however long it is.",
        "envs",
        "passed *= clock.now - before",
        "passed *= 1.0",
    ),
    Fault(
        "placement environment",
        "The improvement of a step is told in parts of one reference, the same for all steps.",
        "It is told in parts of the step time before the decision.",
        "envs",
        "(before_s - after_s) / reference_s",
        "(before_s - after_s) / before_s",
    ),
    Fault(
        "placement environment",
        "An episode ends when a device has no room for what is put there.",
        "It goes on.",
        "envs",
        "self._ended = not fits or self._decisions == len(groups.device) * self.passes",
        "self._ended = self._decisions == len(groups.device) * self.passes",
    ),
    Fault(
        "malleable allocation",
        "What jobs take of a machine in a slot has to fit together.",
        "A plan is sound if each of them fits alone.",
        "experiments/papers/malleable_jobs",
        "taken += job.demand(workers, servers)",
        "taken = np.maximum(taken, job.demand(workers, servers))",
    ),
    Fault(
        "backfilling",
        "A job starts if there are at least as many free GPUs as it asks for.",
        "A job that fits exactly is passed over.",
        "agents",
        'fitting = np.searchsorted(sizes, np.arange(total + 1), side="right")',
        'fitting = np.searchsorted(sizes, np.arange(total + 1), side="left")',
    ),
    Fault(
        "joint choice",
        "No job goes where a neighbour would keep less of its speed than the rule grants.",
        "It goes there whatever its neighbours lose.",
        "agents",
        "least = min(least, left / room.before[share])",
        "least = 1.0",
    ),
    Fault(
        "rounds",
        "Of gangs with equal shares the one that has had least time goes first.",
        "The time that they have had does not count.",
        "agents",
        "priority = share / self._received[jobs]",
        "priority = 1.0 * share",
    ),
    Fault(
        "fair shares",
        "When the worst off cannot get more, the others are raised on.",
        "All stay at the level of the worst off.",
        "agents",
        "raised[stuck] = False",
        "raised[:] = False",
    ),
    Fault(
        "time slicing",
        "Those that have run least have the next turn.",
        "Those that have run most have it.",
        "agents",
        'here[np.argsort(received, kind="stable")]',
        'here[np.argsort(-received, kind="stable")]',
    ),
    Fault(
        "migrating",
        "A job does not move for speed alone before it has run for a while.",
        "It may move at once.",
        "agents",
        "early = now - record.since < least_run_s",
        "early = False",
    ),
    Fault(
        "deciding on live states",
        "GPUs that a state says are not free are given to nobody.",
        "All that its jobs do not hold are given away.",
        "agents",
        "np.where(nodes.free_gpus < 0, 0, left - nodes.free_gpus)",
        "np.where(nodes.free_gpus < 0, 0, 0 * left)",
    ),
    Fault(
        "list scheduling",
        "An operator may fill a gap that is exactly as long as itself.",
        "Such a gap is passed over.",
        "agents",
        "while after != NONE and schedule.begin[after] < start + seconds:",
        "while after != NONE and schedule.begin[after] <= start + seconds:",
    ),
    Fault(
        "critical paths",
        "An operator's tail is the longest way from its end to that of the step.",
        "The next operator on the way is left out.",
        "agents",
        "tail[u] = max(tail[u], weight[use_op[k]] + tail[use_op[k]])",
        "tail[u] = max(tail[u], tail[use_op[k]])",
    ),
    Fault(
        "integer program",
        "What is put on a device fits its memory.",
        "The program has no limits of memory.",
        "agents",
        "upper=capacity[d] / unit",
        "upper=np.inf",
    ),
    Fault(
        "advantages",
        "What comes after the end of an episode is no merit of decisions before it.",
        "Credit flows over the end.",
        "agents",
        "carried = discounts * discounting.kept(elapsed, observed) * ~ends",
        "carried = discounts * discounting.kept(elapsed, observed)",
    ),
    Fault(
        "PPO",
        "A gradient longer than the limit is cut to it.",
        "It is cut to twice the limit.",
        "agents",
        "limit = self.training.ppo.max_gradient_norm",
        "limit = 2.0 * self.training.ppo.max_gradient_norm",
    ),
    Fault(
        "training",
        "A run that is resumed goes on as if it had never stopped.",
        "It begins its random numbers anew.",
        "agents",
        'self.started = [int(count) for count in numbers["started"]]',
        'self.started = [0 for _ in numbers["started"]]',
    ),
    Fault(
        "forecasts of durations",
        "A forecast of what a job still needs is made in the knowledge that it has run so long.",
        "Forecasts that it has outlived keep their weight.",
        "models",
        'come_so_far = torch.einsum("ps,ps->p", shares, beyond[:, 0])',
        "come_so_far = shares.sum(dim=1)",
    ),
    Fault(
        "Gittins index",
        "A job's index is its best chance to end per second spent, over all times to try it for.",
        "It is the mean over these times.",
        "models",
        "(np.log(reached) - np.log(chance @ self._spent)).max(axis=1)",
        "(np.log(reached) - np.log(chance @ self._spent)).mean(axis=1)",
    ),
    Fault(
        "placement network",
        "Groups that only fill up an array say nothing to those that are there.",
        "Groups listen to them.",
        "models",
        "no_node = (~views.node_mask)[:, None, None, :] * MASKED_LOGIT",
        "no_node = (~views.node_mask)[:, None, None, :] * 0.0",
    ),
    Fault(
        "comparison of solvers",
        "The best overall has the least mean ratio to the best of each problem.",
        "It has the least mean, which the longest problems decide.",
        "experiments",
        "ratios = self.means[entry] / self.best",
        "ratios = self.means[entry]",
    ),
    Fault(
        "run folders",
        "A run is never written over another.",
        "It is.",
        "experiments",
        'elif hasattr(config, "resume") or not _unfinished(folder, text):',
        "elif False:",
    ),
    Fault(
        "evaluation of plans",
        "A plan that breaks a rule is not told as feasible.",
        "It is.",
        "agents/step",
        "violations = plan.violations(problem, simulator)",
        "violations: list[str] = []",
    ),
)


def first_tests(clone: Path, file: Path) -> Path:
    """The tests of the package of `file`: the nearest folder of the mirror that there is."""
    parts = file.relative_to(clone).parent.parts
    folder = Path("tests", *parts[1 if parts[1:2] == ("papers",) else 0 :])
    while not any((clone / folder).rglob("test_*.py")):
        folder = folder.parent
    return folder


def failed(clone: Path, caches: str, *arguments: str) -> str | None:
    """The first test that fails, None where none does."""
    environment = {**os.environ, "PYTHONPATH": str(clone), "NUMBA_CACHE_DIR": caches}
    command = [sys.executable, *PYTEST, *arguments]
    try:
        done = subprocess.run(
            command, cwd=clone, env=environment, capture_output=True, text=True, timeout=LONGEST_S,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"no end after {LONGEST_S} s"
    if done.returncode == 0:
        return None
    found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    if found is None:
        sys.exit(f"{' '.join(command)}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return found[1]


def first_failure(clone: Path, file: Path, caches: str) -> str | None:
    """The first test that fails, those of the package of `file` before all others."""
    first = first_tests(clone, file)
    own = failed(clone, caches, str(first))
    return own or failed(clone, caches, f"--ignore={first}", "tests")


def caught_by(clone: Path, fault: Fault, caches: str) -> str | None:
    """The first test that fails with `fault`, None where none does; `caches` of kernels."""
    file = fault.file(clone)
    sound = file.read_text(encoding="utf-8")
    file.write_text(sound.replace(fault.old, fault.new), encoding="utf-8")
    try:
        return first_failure(clone, file, caches)
    finally:
        file.write_text(sound, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="a word of the faults to try")
    parser.add_argument("--check", action="store_true", help="only look for the texts")
    chosen = parser.parse_args()
    faults = [fault for fault in FAULTS if chosen.only in fault.words]
    for fault in faults:
        fault.file(ROOT)
    if chosen.check:
        return 0
    console = Console(width=max(Console().width, 160))
    table = Table("engine", "rule", "broken", "caught by", "seconds")
    unseen = 0
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "clone"
        subprocess.run(["git", "clone", "-q", "--shared", str(ROOT), str(clone)], check=True)
        for fault in faults:
            begin = time.monotonic()
            test = caught_by(clone, fault, str(Path(folder) / "caches"))
            unseen += test is None
            seconds = f"{time.monotonic() - begin:.0f}"
            message = (fault.engine, fault.rule, fault.broken, test or "nothing", seconds)
            table.add_row(*message)
            console.print(*message, sep=" | ", markup=False)
    console.print(table)
    console.print(f"{len(faults) - unseen} of {len(faults)} faults are caught")
    return int(unseen > UNSEEN_ALLOWED)


if __name__ == "__main__":
    sys.exit(main())
