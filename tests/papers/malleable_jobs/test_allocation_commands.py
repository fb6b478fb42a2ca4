"""`meshwright allocate` and `meshwright train` of malleable jobs, from words to results."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from agents.rllib.environments import EnvironmentTask
from agents.rllib.vector import Evaluation
from agents.solver import Budget, Result
from envs.files import read_json
from experiments.command_line import job_of, main_of
from experiments.config.papers import register_environments
from experiments.config.verbs import JOBS, expanded
from experiments.learning.hand_rules import rule_scores
from experiments.papers.malleable_jobs.command import BrokenGuaranteeError, beside_optima
from experiments.papers.malleable_jobs.gadget import Gadget
from experiments.papers.malleable_jobs.planners import BASELINES
from experiments.papers.malleable_jobs.problem import AllocationPlan, AllocationProblem
from experiments.papers.malleable_jobs.slots import AllocationSolver
from tests.experiments.small_split import one_of_several

allocate, train = main_of("allocate"), main_of("train")
pytestmark = pytest.mark.slow
SMALL = ["+split@splits.itp=itp", "problems.jobs=4", "problems.slots=3", "problems.gpus=2"]
TOY = [
    "env=allocation_parallel", *SMALL, "training.budget_s=null", "training.max_steps=40",
    "agent.num_envs=4", "training.evaluation_episodes=2", "training.cloning.iterations=1",
    "agent.group_size=2", "teacher={_target_: agents.cluster.allocation.gadget.Gadget}",
]  # fmt: skip
SEARCH = [
    "model=gains", *SMALL, "problems.machines=[1,1]", "model.drawn=1", "model.rounds=1",
    "model.near=1", "windows=1", "evaluation_windows=1", "evaluations=2",
]  # fmt: skip


def test_a_plan_stands_beside_its_bound(work: Path) -> None:
    rows = "".join(f"{n},{600 * n},3600,{1 + n % 2}\n" for n in range(6))
    rows += "large,3600,60,9\nlate,14400,60,1\nlast,14400,60,9\n"
    (work / "jobs.csv").write_text(f"job_id,submission_time,duration,num_gpu\n{rows}")
    trace = ["problem=trace", "trace.path=jobs.csv", "trace.format=itp", "machines=1", "slots=8"]
    assert allocate([*trace, "agent=optimus", "hydra.run.dir=run"]) == 0
    found = read_json(work / "run/result.json")
    assert (found["jobs"], found["left_out_jobs"]) == (6, 3)
    assert list(found["left_out"].values()) == [2, 1]  # too late, whatever their size; too large
    assert 0.0 < found["utility"] <= found["upper_bound"]
    assert (work / "run" / "workers.png").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("agent=heft", "config key 'agent': 'heft' is not one of all, fifo"),
        ("agent=fifo speed=mesh", "config key 'speed': 'mesh' is not one of ring"),
        ("problem=trace", "config key 'trace.path' is missing"),
        ("slots=1000000000", "config key 'slots'"),
        ("jobs=100000000", "config key 'jobs'"),
        ("jobs=10000 slots=10000", "config key 'slots': 10000 times 10000 jobs"),
        ("machines=1000000000", "config key 'slots': 40 times 20 jobs times"),
        ("study=1 slots=1000000000", "config key 'slots'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    words: str, says: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert allocate(words.split()) == 2
    assert says in capsys.readouterr().err


@dataclass(frozen=True)
class Wrong(AllocationSolver):
    """GADGET, with something in its result that is not true."""

    fault: str

    def _solve(self, problem: AllocationProblem, budget: Budget) -> Result[AllocationPlan]:
        found = Gadget().solve(problem, budget)
        assert found.solution is not None
        if self.fault == "workers":
            found.solution.workers[0] += 100
        elif self.fault == "bound":
            return replace(found, bound=found.value * 0.5)
        elif self.fault == "guarantee":
            return replace(found, figures={"guarantee": 1.01})
        return found


def test_the_study_finds_what_is_not_true_of_planners() -> None:
    (row,) = beside_optima(1, 0, {"gadget": Wrong("nothing")})
    assert row["instances"] == 1
    assert 0.0 < float(str(row["worst"])) <= 1.0
    for fault in ("workers", "bound", "guarantee"):
        with pytest.raises(BrokenGuaranteeError, match="gadget"):
            beside_optima(1, 0, {"gadget": Wrong(fault)})


@pytest.mark.proof
@pytest.mark.parametrize("words", [TOY, SEARCH])
def test_what_is_learned_is_compared(work: Path, words: list[str]) -> None:
    split = one_of_several(work)
    assert train([*words, *split, "hydra.run.dir=run"]) == 0
    found = read_json(work / "run/result.json")
    if words is TOY:
        assert found["untrained_score"] == pytest.approx(1.0)  # at first it is the rule
        policy = found["checkpoint"]
    else:
        assert found["evaluation"] >= 1.0 or found["origin"]["tried"] == 3
        policy = "run/gains.json"
        weights = read_json(work / policy)["numbers"]
        assert set(weights) == {"part", "done", "slack", "wait", "partial"}
    beside = ["env=allocation", *SMALL, f"policies=[{policy}]", "windows=2", "hydra.run.dir=beside"]
    assert train([*beside, *split]) == 0
    utility = read_json(work / "beside/result.json")["utility"]
    assert {"fifo", "gadget", "smd", "rule", policy} <= set(utility)


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("problems.jobs=100000", "config key 'problems.jobs': no trace has 100000"),
        ("training.model={_target_: models.step.channels.PipesConfig}", "PipesConfig is no policy"),
        ("policies=[nowhere]", "nowhere: is not a checkpoint folder"),
        ("policies=[jobs.csv.json]", "jobs.csv.json"),
    ],
)
def test_bad_input_of_training_is_one_line(
    word: str, says: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train([*TOY, *one_of_several(work), word, "hydra.run.dir=run"]) == 2
    assert says in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("words", "job"),
    [("train task=allocation", "train_allocation"), ("train env=allocation", "train_allocation"),
     ("train model=gains", "train_gains"), ("train model=rule task=gains", "train_gains"),
     ("allocate agent=fifo", "allocate"), ("allocate study=3", "allocation_study"),
     ("synchronise study=3", "synchronise")],
)  # fmt: skip
def test_a_job_is_meant_by_what_only_it_takes(words: str, job: str) -> None:
    command, *others = words.split()
    verb, own = expanded(command, others)
    assert job_of(verb, own) is JOBS[job]


def test_usual_rules_stand_beside_what_is_learned_in_the_environment() -> None:
    register_environments()
    task = EnvironmentTask("meshwright/Allocation-v0", objective="worth")
    played = Evaluation(task, 2).of(None, expert=task.reference)
    found = rule_scores(task, [one.objective for one in played])
    assert set(found) == set(BASELINES)
    assert list(found.values()) == sorted(found.values())
    assert next(iter(found.values())) < 0.95
