"""Does the suite notice a fault? Twenty faults made by hand, one at a time, and what catches each.

    python -m tests.proof.mutations [--only WORD] [--check]

Every fault is written into a clone of HEAD. The tests of the touched package run first, with `-x`,
then the rest of `make test`. `--only` takes the faults whose name holds a word, `--check` only
looks whether all texts are still found. The exit code is 1 where more than one fault goes unseen.
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
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.paths import ROOT

UNSEEN_ALLOWED = 1
LONGEST_S = 1800
PYTEST = (
    "-m", "pytest", "-x", "-n", "2", "--dist", "worksteal", "--timeout", "300",
    "--hypothesis-profile=unshrunk", "--hypothesis-seed=0",
)  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """`old` stands once below the folder `floor` and becomes `new`."""

    name: str
    floor: str
    old: str
    new: str

    def file(self, root: Path) -> Path:
        """The one file that holds `old`."""
        found = [
            path
            for path in sorted((root / self.floor).rglob("*.py"))
            for _ in range(path.read_text(encoding="utf-8").count(self.old))
        ]
        if len(found) != 1:
            sys.exit(f"{self.name}: {self.old!r} stands {len(found)} times below {self.floor}/")
        return found[0]


FAULTS = (
    # Kernels.
    Fault(
        "a transfer does not hold its receiving port",
        "envs",
        "                        port_free[s] = at\n                        port_free[r] = at\n"
        "                    stamp[slot, e] = mark",
        "                        port_free[s] = at\n                    stamp[slot, e] = mark",
    ),
    Fault(
        "a job's start overhead is forgotten when its end is told",
        "envs",
        "max(now, record.ready) + record.remaining / record.rate",
        "now + record.remaining / record.rate",
    ),
    Fault(
        "a part of a job's processors is rounded down",
        "envs",
        "return amount if gpus == of else -(-amount * gpus // of)",
        "return amount if gpus == of else amount * gpus // of",
    ),
    Fault(
        "flows of a higher class do not go first",
        "envs",
        'active = np.argsort(priority, kind="stable")',
        "active = np.arange(len(priority))",
    ),
    Fault(
        "two racks count as one",
        "envs",
        "if nodes[shares[share].node].rack != rack:\n            return SEVERAL_RACKS",
        "if nodes[shares[share].node].rack != rack:\n            return ONE_RACK",
    ),
    Fault(
        "backfilling passes over jobs that fit exactly",
        "agents",
        'fitting = np.searchsorted(sizes, np.arange(total + 1), side="right")',
        'fitting = np.searchsorted(sizes, np.arange(total + 1), side="left")',
    ),
    # Planners.
    Fault(
        "a gap that fits exactly is passed over",
        "agents",
        "while after != NONE and schedule.begin[after] < start + seconds:",
        "while after != NONE and schedule.begin[after] <= start + seconds:",
    ),
    Fault(
        "the tail of a path leaves out its next operator",
        "agents",
        "tail[u] = max(tail[u], weight[use_op[k]] + tail[use_op[k]])",
        "tail[u] = max(tail[u], tail[use_op[k]])",
    ),
    Fault(
        "an integer program without memory limits",
        "agents",
        "upper=capacity[d] / unit",
        "upper=np.inf",
    ),
    # Environments.
    Fault(
        "the improvement of a step is taken over the step before",
        "envs",
        "(outcome.before_s - outcome.after_s) / outcome.reference_s",
        "(outcome.before_s - outcome.after_s) / outcome.before_s",
    ),
    Fault(
        "a device without room does not end the episode",
        "envs",
        "if not fits or self._decisions == len(groups.device) * self.passes:",
        "if self._decisions == len(groups.device) * self.passes:",
    ),
    Fault(
        "jobs that run count as queueing",
        "envs",
        '"queueing": -passed.queued,',
        '"queueing": -passed.unfinished,',
    ),
    # Models.
    Fault(
        "a Gittins index is a mean instead of a maximum",
        "models",
        "(np.log(reached) - np.log(chance @ self._spent)).max(axis=1)",
        "(np.log(reached) - np.log(chance @ self._spent)).mean(axis=1)",
    ),
    Fault(
        "groups listen to padded groups",
        "models",
        "no_node = (~views.node_mask)[:, None, None, :] * MASKED_LOGIT",
        "no_node = (~views.node_mask)[:, None, None, :] * 0.0",
    ),
    # The learner.
    Fault(
        "credit flows over the end of an episode",
        "agents",
        "carried = discounts * discounting.kept(times, observed) * ~ends",
        "carried = discounts * discounting.kept(times, observed)",
    ),
    Fault(
        "gradients are limited to twice the limit",
        "agents",
        "limit = self.training.ppo.max_gradient_norm",
        "limit = 2.0 * self.training.ppo.max_gradient_norm",
    ),
    Fault(
        "a resumed run draws other numbers",
        "agents",
        'self.started = [int(count) for count in numbers["started"]]',
        'self.started = [0 for _ in numbers["started"]]',
    ),
    # Apps.
    Fault(
        "the best policy is that of the longest windows",
        "experiments",
        "(means / means.min(axis=0)).mean(axis=1).argmin()",
        "means.mean(axis=1).argmin()",
    ),
    Fault(
        "a run is written over another",
        "experiments",
        'elif hasattr(config, "resume") or not _unfinished(folder, text):',
        "elif False:",
    ),
    Fault(
        "a plan that breaks a rule is evaluated as feasible",
        "experiments",
        "violations = plan.violations(problem, simulator)",
        "violations: list[str] = []",
    ),
)


def first_tests(clone: Path, file: Path) -> Path:
    """The tests of the package of `file`: the nearest folder of the mirror that there is."""
    folder = Path("tests") / file.relative_to(clone).parent
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
    """The first test that fails with `fault`, None where none does; `caches` of sound kernels."""
    file = fault.file(clone)
    sound = file.read_text(encoding="utf-8")
    file.write_text(sound.replace(fault.old, fault.new), encoding="utf-8")
    try:
        if "envs.compilation" not in sound:
            return first_failure(clone, file, caches)
        # Compiled callers in other files would hold the sound kernel.
        with tempfile.TemporaryDirectory() as own:
            return first_failure(clone, file, own)
    finally:
        file.write_text(sound, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="a word in the names of the faults to try")
    parser.add_argument("--check", action="store_true", help="only look for the texts")
    chosen = parser.parse_args()
    faults = [fault for fault in FAULTS if chosen.only in fault.name]
    for fault in faults:
        fault.file(ROOT)
    if chosen.check:
        return 0
    console = Console(width=max(Console().width, 160))
    table = Table("fault", "caught by", "seconds")
    unseen = 0
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "clone"
        subprocess.run(["git", "clone", "-q", "--shared", str(ROOT), str(clone)], check=True)
        for fault in faults:
            begin = time.monotonic()
            test = caught_by(clone, fault, str(Path(folder) / "caches"))
            unseen += test is None
            seconds = f"{time.monotonic() - begin:.0f}"
            table.add_row(fault.name, test or "nothing", seconds)
            console.print(f"{fault.name}: {test or 'nothing'} ({seconds} s)", markup=False)
    console.print(table)
    console.print(f"{len(faults) - unseen} of {len(faults)} faults are caught")
    return int(unseen > UNSEEN_ALLOWED)


if __name__ == "__main__":
    sys.exit(main())
