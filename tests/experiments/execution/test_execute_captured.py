"""Plans of captured modules: their own operators are the layers, and train what the module does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from a_module import Own
from commands import ran
from plans_of_layers import document
from refusals import refused

from agents.pipeline.published import gpipe, one_f_one_b, zb_h1
from envs.files import read_json
from envs.graphs.capture import Workload
from envs.graphs.op_graph import OpGraph, Phase
from envs.graphs.zoo import capture_zoo_model
from envs.graphs.zoo_models import ZooShape, zoo_model
from envs.graphs.zoo_modules import workload
from envs.hybrid.plan import order_texts
from experiments.execution.captured import CapturedLayers, WithoutDropout
from experiments.execution.split import read_split
from tests.refusal import refusal
from tests.strength import at_full_strength

pytestmark = pytest.mark.slow
DEVICES = ("topology=profiled_2x8", "topology.server.count=1", "budget_s=1")
SHAPE = ("graph=t5_small", "graph.batch=4", "graph.micro_batches=2", "graph.sequence=8")


def operators(graph: OpGraph) -> list[str]:
    """Names of the forward pass, as layers have them."""
    forward = np.flatnonzero((graph.phase == Phase.FORWARD) & (graph.micro_batch == 0))
    return [graph.op_names[n].removeprefix("mb0/").removeprefix("forward/") for n in forward]


def gradients_agree(of: Workload, names: list[str]) -> None:
    model = CapturedLayers(of, names, 1, 0)
    layers, whole = model.layers(), model.whole()
    data, target = model.batch(0, 1)
    values: Any = ()
    for layer in layers.values():
        found = layer(*values, **data)
        values = found if isinstance(found, tuple) else (found,)
    loss = model.loss(values[0], target)
    loss.backward()
    with WithoutDropout():
        unsplit = whole(**model.one(data, 0))
    unsplit.backward()
    assert loss.item() == pytest.approx(unsplit.item(), rel=1e-6)
    met = set()
    for layer in layers.values():
        for key, parameter in layer.named_parameters():
            theirs = whole.get_parameter(key)
            met.add(theirs)
            if theirs.grad is not None:
                assert parameter.grad is not None
                np.testing.assert_allclose(parameter.grad, theirs.grad, rtol=1e-4, atol=1e-6)
    assert met >= {x for x in whole.parameters() if x.grad is not None}


def test_layers_cut_at_any_operator_have_the_gradients_of_the_module() -> None:
    names = operators(Own().capture())
    for cut in range(1, len(names), 4):
        gradients_agree(Own().workload(1), [names[0], names[cut]])
    gradients_agree(Own().workload(1), names)


SMALL = {} if at_full_strength() else {"layers": 2, "hidden": 128, "vocabulary": 90}


# batch norm; a decoder, tied weights
@pytest.mark.parametrize(("name", "shape"), [("resnet50", {}), ("t5", {"sequence": 8, **SMALL})])
def test_models_of_the_zoo_are_cut(name: str, shape: ZooShape) -> None:
    model = zoo_model(name, batch=2, micro_batches=1, **shape)
    names = operators(capture_zoo_model(model))
    cuts = np.random.default_rng(0).choice(np.arange(1, len(names)), 5, replace=False)
    gradients_agree(workload(model), [names[k] for k in (0, *sorted(cuts))])


def test_operators_that_the_module_lacks_are_no_layers() -> None:
    names = operators(Own().capture())
    for wrong in ([names[0], "blocks.9/addmm"], [names[3], names[2]]):
        refused(lambda wrong=wrong: CapturedLayers(Own().workload(1), wrong, 1, 0), [wrong[1]])


@pytest.fixture
def work(work: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    return work


def planned(*words: str) -> dict[str, Any]:
    """The plan file of the app."""
    ran("plan", "agent=dapple", "problem=pipeline", *words, *DEVICES, run="plan")
    found: dict[str, Any] = read_json("plan/hybrid_plan.json")
    return found


@pytest.mark.proof
def test_plans_of_a_module_of_ones_own_run_in_processes(work: Path) -> None:
    """Stages on two ranks that share a weight; and two pipelines side by side."""
    layers = planned("graph=a_module.Own", "problem.layers=6")["problem"]["layers"]
    half, end = len(layers) // 2, len(layers)
    plans = {
        "one_f_one_b": document((0, half, end), (0, 1), order_texts(one_f_one_b(2, 4, 1))),
        "zb_h1": document((0, 1, end), (0, 1), order_texts(zb_h1(2, 4, 1))),
        "replicas": document((0, end), (0,), order_texts(gpipe(1, 4, 1)), replicas=2),
    }
    for name, one in plans.items():
        one["problem"] = {"name": "own", "layers": layers}
        Path(f"{name}.json").write_text(json.dumps(one))
    files = ",".join(f"{name}.json" for name in plans)
    words = [f"plan=[{files}]", "graph=a_module.Own", "warm_up=1", "steps=2", "checked=3"]
    found = ran("execute", *words)
    assert found["equal"], found["plans"]
    assert [x["name"] for x in found["plans"]] == list(plans)


def test_a_plan_of_the_zoo_says_which_model_it_is_of(work: Path) -> None:
    found = planned(*SHAPE, "problem.layers=4")
    split = read_split("plan/hybrid_plan.json")
    assert split.graph is not None
    assert split.graph["_target_"] == "experiments.step.problem.ZooGraph"
    assert split.graph.items() >= {"name": "t5_small", "batch": 4, "sequence": 8}.items()
    for key, value in {
        "name": "nobody", "_target_": "os.getcwd", "batch": {"_target_": "os.getcwd"},
        "one_operator": [{"_target_": "os.getcwd"}], "head": "${oc.env:HOME}", "sequence": -1,
    }.items():  # fmt: skip
        model: Mapping[str, Any] = {**found["problem"]["model"], key: value}
        changed = {**found, "problem": {**found["problem"], "model": model}}
        Path("changed.json").write_text(json.dumps(changed))
        with refusal(r"changed\.json"):
            read_split("changed.json")
