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

from agents.cluster.checkpoint_adviser import described
from envs.cluster.environment.features import HIGH, LOW
from envs.cluster.environment.parallel_env import ClusterParallelEnv
from envs.cluster.environment.views import Adviser
from envs.errors import InputError
from envs.files import write_atomically
from envs.placement.env import PlacementEnv
from envs.step.problem import StepProblem
from experiments.run.app import ENVIRONMENT_FILE
from experiments.run.artifacts import to_yaml, write_sidecar
from experiments.run.provenance import (
    Provenance,
    file_hash,
    portable,
    text_hash,
    without_absolute_paths,
)
from experiments.step.problem import placement_env
from experiments.step.search import Observations, episode
from models.artifacts import read_json_object
from models.export.checkpoint import SPEC_FILE, AdviserSpec

if TYPE_CHECKING:
    from models.architecture import Policy
    from models.step.policy import PlacementPolicy


CHECKPOINT_FOLDER = "checkpoint"

PLACEMENT_ID, CLUSTER_ID = "meshwright/Placement-v0", "meshwright/ClusterParallel-v0"

REPLAY_TIMEOUT_S = 120.0

ROOT = Path(__file__).resolve().parents[2]  # where `experiments` can be imported from

Node = Mapping[str, Any]


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


class EagerAgent:
    """The policy as it stands in memory."""

    def __init__(self, policy: PlacementPolicy) -> None:
        self.policy = policy

    def act(self, observation: Mapping[str, NDArray[Any]]) -> np.int64:
        """The most probable device of the current group."""
        import torch

        from models.step.policy import GraphBatch

        with torch.inference_mode():
            logits, _ = self.policy(GraphBatch.stack([observation]))
        return np.int64(logits[0].argmax().item())


def export_checkpoint(
    policy: PlacementPolicy,
    folder: Path,
    env: PlacementEnv,
    *,
    title: str,
    config: Mapping[str, object],
    evaluation: Sequence[Mapping[str, str]] = (),
    remark: str = "",
    provenance: Provenance,
) -> Path:
    """Write the checkpoint folder of `policy`, trained in `env`; returns its absolute path."""
    from models.export.exporter import ModelCard, export_policy

    space = env.observation_space["node_features"]
    card = ModelCard(
        title=title,
        environment=PLACEMENT_ID,
        bounds=(float(np.min(space.low)), float(np.max(space.high))),  # type: ignore[attr-defined]
        config_yaml=to_yaml(dict(config), provenance),
        command=provenance.command,
        evaluation=evaluation,
        remark=remark,
        provenance=provenance.document(),
    )
    return export_policy(policy, folder.resolve(), card)


def verify_checkpoint(
    policy: PlacementPolicy,
    folder: Path,
    env_node: Node,
    problem: StepProblem,
    run_folder: Path,
    provenance: Provenance,
) -> Verification:
    """Ask the exported policy, in a process without Ray and PyG, what the policy here decides.

    The observations are those of one episode that the policy here plays on `problem`; they are
    kept in `run_folder`.
    """
    folder = folder.resolve()
    observations, expected = episode(placement_env(env_node, problem), EagerAgent(policy))
    return replayed(folder, observations, expected, run_folder, provenance)


def replayed(
    folder: Path,
    observations: Observations,
    expected: NDArray[np.int64],
    run_folder: Path,
    provenance: Provenance,
) -> Verification:
    """Ask an exported policy, in a process without Ray and PyG, about (K, ...) observations.

    They are kept in `run_folder`.

    Args:
        folder: the checkpoint folder.
        observations: every array stacked.
        expected: (K,) decisions of the policy here.
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


VERIFIED_STEPS = 64  # of an exam's episode


def require_exportable(model: object, adviser: Adviser | None) -> None:
    """Refuse, before a run, a policy or an adviser that no checkpoint folder can hold.

    Raises:
        InputError: it is one.
    """
    from models.cluster.hierarchical import HierarchicalConfig

    if not isinstance(model, HierarchicalConfig):
        message = f"{type(model).__name__} describes no policy of schedulers that can be exported"
        raise InputError(f"config key 'training.model': {message}")
    described(adviser)


def adviser_inputs(adviser: AdviserSpec | None) -> dict[str, str]:
    """The SHA-256 of the posterior that an adviser reads, and of its weights; empty without."""
    if adviser is None:
        return {}
    inputs = {name: file_hash(folder / SPEC_FILE) for name, folder in adviser.folders.items()}
    weights = adviser.document.get("priority", {}).get("weights")
    return inputs if weights is None else {**inputs, "weights": text_hash(json.dumps(weights))}


def same_inputs(run_folder: Path, adviser: AdviserSpec | None) -> None:
    """Refuse a posterior or weights that are not those a run was begun with.

    Raises:
        InputError: they are others, or the run does not say which they were.
    """
    path = run_folder / "checkpoints" / "provenance.json"
    inputs = read_json_object(path).get("provenance", {}).get("inputs_sha256", {})
    for name, found in adviser_inputs(adviser).items():
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
    provenance: Provenance,
) -> Path:
    """Write the checkpoint folder of the policy of a run's best exam; returns its absolute path.

    Args:
        policy: it.
        folder: the checkpoint folder.
        env: one that it was trained or examined in.
        run_folder: of the training run, with `best/`.
        config: of the training run, resolved.
        traces: names of those it was trained on.
        provenance: of this export.

    Raises:
        InputError: the policy or its adviser is of a kind that is not exported, or the run folder
            lacks a file.
    """
    from agents.rllib.restore import BEST, SCORE_FILE
    from models.cluster.hierarchical import HierarchicalPolicy
    from models.export.exporter import ModelCard, export_scheduler

    if not isinstance(policy, HierarchicalPolicy):
        raise InputError(f"{type(policy).__name__} cannot be exported", field="policy")
    best = read_json_object(run_folder / BEST / SCORE_FILE)
    origin = read_json_object(run_folder / ENVIRONMENT_FILE)
    adviser = described(env.observation.adviser)
    provenance = portable(provenance)
    remark = "mean JCT over that of the reference, mean over the windows of the exam; every action"
    card = ModelCard(
        title=f"Scheduler of clusters trained on {', '.join(traces)}",
        environment=CLUSTER_ID,
        bounds=(float(LOW), float(HIGH)),
        config_yaml=to_yaml(without_absolute_paths(config), provenance),
        command=str(without_absolute_paths(origin["provenance"]["command"])),
        evaluation=[
            {
                "exam after iteration": str(best["iteration"]),
                "steps": f"{best['steps']:,}",
                "mean JCT / reference's": f"{best['score']:.4f}",
            }
        ],
        remark=f"{remark} is the most probable one",
        provenance=provenance.document(),
    )
    with tempfile.TemporaryDirectory() as copies:
        shown = None if adviser is None else _portable(adviser, Path(copies))
        return export_scheduler(policy, folder.resolve(), card, shown)


def _portable(adviser: AdviserSpec, copies: Path) -> AdviserSpec:
    """The same with copies of what it reads whose specs name no folder of this machine."""
    for name, folder in adviser.folders.items():
        shutil.copytree(folder, copies / name)
        spec = without_absolute_paths(read_json_object(folder / SPEC_FILE))
        (copies / name / SPEC_FILE).write_text(json.dumps(spec, indent=2) + "\n", encoding="utf-8")
    return AdviserSpec(adviser.document, {name: copies / name for name in adviser.folders})


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
    return replayed(folder, observations, expected, run_folder, provenance)


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
