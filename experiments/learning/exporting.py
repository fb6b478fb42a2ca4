"""A trained policy as a checkpoint folder, and the proof that it decides as it did here."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from agents.cluster.checkpoint_expert import described
from agents.cluster.migrating.policy import Migrating
from agents.cluster.teachers import FirstFit, ShownExpert
from envs.cluster.environment.observation import ExpertPolicy
from envs.cluster.environment.parallel_env import ClusterParallelEnv
from envs.errors import InputError
from envs.files import write_atomically
from envs.step.problem import StepProblem
from experiments.learning.outcome import Outcome
from experiments.learning.replay import PLACER, SCHEDULER, tokens
from experiments.reporting.tables import markdown_table
from experiments.run.artifacts import to_yaml, write_sidecar
from experiments.run.one_run import ENVIRONMENT_FILE
from experiments.run.provenance import (
    Provenance,
    file_hash,
    portable,
    text_hash,
    without_absolute_paths,
)
from models.artifacts import read_json_object
from models.export.checkpoint import SPEC_FILE, ExpertSpec, ModelCard, export_plan

if TYPE_CHECKING:
    from models.architecture import Policy
    from models.step.placer import PlacerPolicy


CHECKPOINT_FOLDER = "checkpoint"


def evaluation_score(reference: str) -> str:
    """What evaluations of schedulers measure, by whom."""
    return f"mean JCT over that of {reference}"


def named(reference: ExpertPolicy, shown: ExpertPolicy | None) -> str:
    """What tables call the reference of evaluations, where schedulers are `shown` a plan."""
    if isinstance(reference, FirstFit):
        return "first fit"
    plan = described(shown) if isinstance(reference, ShownExpert) else None
    if plan is None:
        return type(reference).__name__
    return f"the plan that it is shown ({plan.document['priority']['kind']})"


REPLAY_TIMEOUT_S = 120.0

ROOT = Path(__file__).resolve().parents[2]  # where `experiments` can be imported from

Observations = dict[str, NDArray[Any]]  # every array stacked: (K, ...)


@dataclass(frozen=True)
class Verification:
    """Decisions of the exported policy in a fresh process against those of the policy here."""

    decisions: int  # asked for
    identical: int  # the same in every runtime
    runtimes: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return self.identical == self.decisions

    def document(self) -> dict[str, object]:
        """As a JSON mapping."""
        return {**asdict(self), "passed": self.passed}


def title_of(problem: StepProblem) -> str:
    """Of a policy trained on it."""
    return f"Placement policy trained on {problem.graph.name} on {problem.topology.name}"


def card_of(
    title: str, text: str, config: Mapping[str, object], provenance: Provenance
) -> ModelCard:
    """What a reader of the checkpoint folder of a policy of whole plans wants to know."""
    provenance = portable(provenance)
    config_yaml = to_yaml(without_absolute_paths(config), provenance)
    return ModelCard(title, text, config_yaml, provenance.document())


def verify_placement(
    policy: PlacerPolicy,
    folder: Path,
    observation: Mapping[str, NDArray[Any]],
    run_folder: Path,
    provenance: Provenance,
) -> Verification:
    """Ask the exported policy, in a process without Ray, PyG and torch, for the plans made here.

    They are for the problem that is observed; the observation is kept in `run_folder`. Every device
    of a group counts as a decision.
    """
    from models.step.placer import PresentNetwork

    seen = {name: array[None] for name, array in observation.items()}
    expected = tokens(PresentNetwork(policy), policy.config.sweeps, seen)
    return replayed(PLACER, folder, seen, expected, run_folder, provenance)


def replayed(
    kind: str,
    folder: Path,
    observations: Observations,
    expected: NDArray[np.int64],
    run_folder: Path,
    provenance: Provenance,
) -> Verification:
    """Ask an exported policy, where what trained it is barred, about (K, ...) observations.

    They are kept in `run_folder`.

    Args:
        kind: of the policy, as `experiments.learning.replay` names it.
        folder: the checkpoint folder.
        observations: every array stacked.
        expected: decisions of the policy here.
        run_folder: of this run.
        provenance: of the observations.
    """
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **observations)
    cases = run_folder.resolve() / "observations.npz"
    write_atomically(cases, buffer.getvalue())
    write_sidecar(cases, provenance, kind="observations")
    command = [
        sys.executable,
        "-m",
        "experiments.learning.replay",
        kind,
        str(folder.resolve()),
        str(cases),
    ]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=REPLAY_TIMEOUT_S, check=True
    )
    decided: dict[str, list[int]] = json.loads(done.stdout)
    same = np.ones(len(expected), dtype=np.bool_)
    for decisions in decided.values():
        same &= np.array(decisions) == expected
    return Verification(len(expected), int(same.sum()), tuple(decided))


VERIFIED_STEPS = 64  # of an evaluation's episode


def require_exportable(model: object, expert: ExpertPolicy | None) -> None:
    """Refuse, before a run, a policy or an expert that no checkpoint folder can hold.

    Raises:
        InputError: it is one.
    """
    from models.cluster.hierarchical import HierarchicalConfig

    if not isinstance(model, HierarchicalConfig):
        message = f"{type(model).__name__} describes no policy of schedulers that can be exported"
        raise InputError(f"config key 'training.model': {message}")
    described(expert)


def expert_inputs(expert: ExpertSpec | None) -> dict[str, str]:
    """The SHA-256 of the posterior that an expert reads, and of its weights; empty without."""
    if expert is None:
        return {}
    inputs = {name: file_hash(folder / SPEC_FILE) for name, folder in expert.folders.items()}
    weights = expert.document.get("priority", {}).get("weights")
    return inputs if weights is None else {**inputs, "weights": text_hash(json.dumps(weights))}


def same_inputs(run_folder: Path, expert: ExpertSpec | None) -> None:
    """Refuse a posterior or weights that are not those a run was begun with.

    Raises:
        InputError: they are others, or the run does not say which they were.
    """
    path = run_folder / "checkpoints" / "provenance.json"
    inputs = read_json_object(path).get("provenance", {}).get("inputs_sha256", {})
    for name, found in expert_inputs(expert).items():
        if inputs.get(name) != found:
            message = f"the run was begun with sha256 {inputs.get(name)}, now it is {found}"
            raise InputError(message, file=path, field=name)


def export_trained(
    policy: Policy,
    folder: Path,
    env: ClusterParallelEnv,
    *,
    run_folder: Path,
    config: Mapping[str, object],
    traces: Sequence[str],
    reference: str,
    provenance: Provenance,
) -> Path:
    """Write the checkpoint folder of a run's best policy; returns its absolute path.

    Args:
        policy: it.
        folder: the checkpoint folder.
        env: one that it was trained or evaluated in.
        run_folder: of the training run, with `best/`.
        config: of the training run, resolved.
        traces: names of those it was trained on.
        reference: whom evaluations are measured by.
        provenance: of this export.

    Raises:
        InputError: the policy or its expert is of a kind that is not exported, or the run folder
            lacks a file.
    """
    from models.cluster.hierarchical import HierarchicalPolicy
    from models.export.exporter import export_scheduler

    if not isinstance(policy, HierarchicalPolicy):
        raise InputError(f"{type(policy).__name__} cannot be exported", field="policy")
    score = evaluation_score(reference)
    outcome = Outcome.of(run_folder, score)
    evaluated = (outcome.best, outcome.untrained)[: 1 + bool(outcome.best.iteration)]
    origin = read_json_object(run_folder / ENVIRONMENT_FILE)
    cells = [one.cells() for one in evaluated]
    text = (
        f"## Evaluation\n\n{markdown_table(list(cells[0]), [list(x.values()) for x in cells])}\n"
        f"{outcome.sentence}; a score is the {score}, mean over the windows of the evaluation; "
        "every action is the most probable one.\n\nReproduce with\n\n"
        f"    {without_absolute_paths(origin['provenance']['command'])}"
    )
    title = f"Scheduler of clusters trained on {', '.join(traces)}"
    card, expert = card_of(title, text, config, provenance), described(env.observation.expert)
    with tempfile.TemporaryDirectory() as copies:
        shown = None if expert is None else _portable(expert, Path(copies))
        return export_scheduler(policy, folder.resolve(), card, shown)


def export_migrating(
    policy: Migrating, folder: Path, evaluations: str, provenance: Provenance
) -> Path:
    """Write the checkpoint folder of a plan, with a table of `evaluations`; its absolute path.

    Raises:
        InputError: its order is of a kind that is not exported.
    """
    plan, provenance = described(policy), portable(provenance)
    assert plan is not None
    lines = [
        "# Scheduler of clusters: jobs in an order of priority, on the fastest GPUs they can get",
        f"`{SPEC_FILE}` describes the plan, its numbers and its order; there is no network. It "
        "takes clusters of any size and any GPU types.",
        f"## Evaluation\n\n{evaluations}\nMean JCT over that of the order before the search, 95 %.",
        f"Reproduce with\n\n    {provenance.command}\n",
    ]
    with tempfile.TemporaryDirectory() as copies:
        shown = _portable(plan, Path(copies))
        return export_plan(shown, folder.resolve(), "\n\n".join(lines), provenance.document())


def _portable(expert: ExpertSpec, copies: Path) -> ExpertSpec:
    """The same with copies of what it reads whose specs name no folder of this machine."""
    for name, folder in expert.folders.items():
        shutil.copytree(folder, copies / name)
        spec = without_absolute_paths(read_json_object(folder / SPEC_FILE))
        (copies / name / SPEC_FILE).write_text(json.dumps(spec, indent=2) + "\n", encoding="utf-8")
    return ExpertSpec(expert.document, {name: copies / name for name in expert.folders})


def verify_schedulers(
    policy: Policy,
    folder: Path,
    env: ClusterParallelEnv,
    run_folder: Path,
    provenance: Provenance,
) -> Verification:
    """Ask the exported policy, in a process without Ray and PyG, what the policy here decides.

    The observations are those of the first steps of an episode that the policy here plays; they
    are kept in `run_folder`.
    """
    observations, expected = first_decisions(policy, env, VERIFIED_STEPS)
    return replayed(SCHEDULER, folder, observations, expected, run_folder, provenance)


def first_decisions(
    policy: Policy, env: ClusterParallelEnv, steps: int
) -> tuple[Observations, NDArray[np.int64]]:
    """The (K, ...) observations of an episode's first steps, and what the policy decides."""
    import torch

    seen: list[Mapping[str, NDArray[Any]]] = []
    decided: list[int] = []
    observations, _ = env.reset(seed=0)
    for _ in range(steps):
        if not env.agents:
            break
        actions = {}
        for agent in env.agents:
            graph = {name: np.array(array) for name, array in observations[agent].items()}
            batch = {name: torch.from_numpy(array[None]) for name, array in graph.items()}
            with torch.inference_mode():
                actions[agent] = int(policy.decide(batch)[0][0].argmax())
            seen.append(graph)
            decided.append(actions[agent])
        observations, *_ = env.step(actions)
    stacked = {name: np.stack([one[name] for one in seen]) for name in seen[0]}
    return stacked, np.array(decided, dtype=np.int64)
