"""The policy of a training run as a checkpoint folder, verified."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from agents.cluster.checkpoint_expert import described
from envs.errors import InputError
from envs.placement.episodes import OneProblem
from experiments.config.composing import CONFIG_FILE, plain_config, saved_keys
from experiments.config.signatures import PREFIX
from experiments.config.targets import build
from experiments.learning.exporting import (
    CHECKPOINT_FOLDER,
    Verification,
    card_of,
    evaluation_score,
    expert_inputs,
    export_trained,
    named,
    same_inputs,
    title_of,
    verify_placement,
    verify_schedulers,
)
from experiments.learning.main_cluster import MainClusterConfig
from experiments.learning.outcome import Outcome
from experiments.learning.train_cluster import TrainClusterConfig, task_of
from experiments.run.one_run import Result, Run
from experiments.run.provenance import Provenance, file_hash
from experiments.run.saved_run import saved_config, saved_nodes
from experiments.step.problem import load_problem
from models.artifacts import read_json_object

if TYPE_CHECKING:
    from agents.rllib.config import Training


@dataclass(kw_only=True)
class ExportConfig:
    """`conf/export.yaml`."""

    run: str  # the run folder of experiments.train or experiments.main
    output: str | None = None  # the checkpoint folder; null: `checkpoint` in this run's folder
    seed: int
    json: bool


def export_run(config: ExportConfig, run: Run) -> Result:
    """Write the checkpoint folder of the policy of the run's best evaluation.

    Raises:
        InputError: the run has none that is exported, or a file of it is missing or another.
    """
    source = Path(config.run)
    if "env" not in (saved_keys(source) or {"env"}):
        reason = (
            "trained neither whole plans nor a cluster's schedulers: only those are exported so; "
            f"train resume={source} writes its checkpoint folder again"
        )
        raise InputError(reason, file=source)
    nodes = saved_nodes(source, ("env",))
    target = str(nodes["env"].get("_target_")).removeprefix(PREFIX)
    if target.startswith("envs.cluster."):
        return export_scheduler_of(config, run)

    from agents.rllib.restore import load_best
    from agents.rllib.step.plans import PLANNER, Continued, sweeps_of
    from models.export.placer import export_placer
    from models.step.placer import PlacerConfig, PlacerPolicy

    nodes |= saved_nodes(source, ("training",))
    training: Training = build(nodes["training"])
    model = training.model
    if not isinstance(model, PlacerConfig | Continued):
        reason = (
            f"{type(model).__name__} describes no policy of whole plans: only those are exported"
        )
        raise InputError(reason, file=source / CONFIG_FILE, field="training.model")
    provenance = run.provenance.with_inputs(run=file_hash(source / CONFIG_FILE))
    make, title = build(nodes["env"]), "A placement policy"
    if target.endswith(OneProblem.__name__):
        nodes |= saved_nodes(source, ("graph", "topology", "cost"))
        loaded = load_problem(nodes["env"], nodes["graph"], nodes["topology"], nodes["cost"])
        make, provenance = partial(make, loaded.problem), loaded.stamp_on(provenance)
        title = title_of(loaded.problem)
    problems = make(sweeps=sweeps_of(model))
    policy = model.policy(problems.observation_space, problems.action_space)
    load_best(source, {PLANNER: policy})
    assert isinstance(policy, PlacerPolicy)
    outcome = Outcome.of(source, "the score in evaluations of the most probable plans is")
    card = card_of(title, f"{outcome.sentence}.", nodes, provenance)
    checkpoint = export_placer(policy, output_of(config, run).resolve(), card)
    seen = problems.evaluation(0).observation
    verification = verify_placement(policy, checkpoint, seen, run.folder, provenance)
    return verified(checkpoint, verification, provenance, outcome)


def export_scheduler_of(config: ExportConfig, run: Run) -> Result:
    """The same of a run that trained schedulers: the policy of its best evaluation.

    Raises:
        InputError: the run has no such policy, or it, the traces or what its expert reads is
            missing or another.
    """
    from agents.rllib.restore import load_best

    source = Path(config.run)
    compares = "comparison" in (saved_keys(source) or ())
    saved = saved_config(source, MainClusterConfig if compares else TrainClusterConfig)
    training, found, task = task_of(saved)
    if training.parameters != "shared":
        raise InputError("a checkpoint folder holds one policy", file=source, field="parameters")
    env = task.make_evaluation(0)
    shown = described(env.observation.expert)
    provenance = run.provenance.with_inputs(
        **found.inputs, **expert_inputs(shown), run=file_hash(source / CONFIG_FILE)
    )
    same_inputs(source, shown)
    ((name, architecture),) = task.architectures(training.model).items()
    policy = architecture.policy(*task.spaces_of(task.agents[0]))
    load_best(source, {name: policy})
    reference = named(task.reference, env.observation.expert)
    checkpoint = export_trained(
        policy,
        output_of(config, run),
        env,
        run_folder=source,
        config=plain_config(saved),
        traces=[trace.name for trace in found.traces],
        reference=reference,
        provenance=provenance,
    )
    verification = verify_schedulers(policy, checkpoint, env, run.folder, provenance)
    return verified(
        checkpoint, verification, provenance, Outcome.of(source, evaluation_score(reference))
    )


def output_of(config: ExportConfig, run: Run) -> Path:
    """Where the checkpoint folder goes.

    Raises:
        InputError: something else is there.
    """
    output = run.folder / CHECKPOINT_FOLDER if config.output is None else Path(config.output)
    if output.exists() and not (output / "spec.json").is_file():
        raise InputError("exists and is no checkpoint folder", file=output)
    if output.exists():  # and is replaced whole
        spec = read_json_object(output / "spec.json")
        listed = [spec[key] for key in ("sha256", "folders") if isinstance(spec.get(key), dict)]
        found = {path.name for path in output.iterdir()}.difference({"spec.json"}, *listed)
        if found:
            raise InputError(f"holds {min(found)}, which is no file of a checkpoint", file=output)
    return output


def verified(
    checkpoint: Path, verification: Verification, provenance: Provenance, outcome: Outcome
) -> Result:
    """What the app tells."""
    values: dict[str, object] = {
        "checkpoint": str(checkpoint),
        "verification": verification.document(),
    }
    values |= {"verified": verification.passed}
    return Result(values, provenance, warnings=outcome.warnings)
