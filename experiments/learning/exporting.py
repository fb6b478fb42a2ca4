"""A trained policy as a checkpoint folder, and the proof that it decides as it did here."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from envs.files import write_atomically
from envs.placement.env import PlacementEnv
from envs.step.problem import StepProblem
from experiments.run.artifacts import to_yaml, write_sidecar
from experiments.run.provenance import Provenance
from experiments.step.problem import placement_env
from experiments.step.search import Observations, episode

if TYPE_CHECKING:
    from models.step.policy import PlacementPolicy

CHECKPOINT_FOLDER = "checkpoint"
ENVIRONMENT_ID = "meshwright/Placement-v0"
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
        """Whether all are identical."""
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
        environment=ENVIRONMENT_ID,
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
