"""The problems that a placement policy is trained on: deterministic, solvable, varied."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.random import default_rng

from envs.cost import RooflineCost
from envs.graphs.motifs import Sketch, draw_network, experts, hourglass, step_graph
from envs.graphs.op_graph import NONE, Kind, OpGraph, Phase
from envs.hardware.builders import pairwise_topology, random_topology, single_server
from envs.hardware.servers import PcieServer
from envs.placement.generator import TrainingProblems, first_micro_batches, scaled
from envs.step.fusion import fuse
from envs.step.price import Pricer
from envs.step.problem import StepProblem
from envs.step.stored_problem import problem_arrays
from tests.strength import trials

PCIE = {"medium": "PCIe", "bandwidth": "16GB/s", "latency": "2us"}
DEVICES = single_server("two", PcieServer("V100-16GB", 2, PCIE))


def synthetic(wide: bool = True) -> TrainingProblems:
    return TrainingProblems((), 0.0, 0.15, 0.2, 128, 32, wide)


def contracted(micro_batches: int, seed: int) -> OpGraph:
    sketch = draw_network(default_rng(seed), 24)
    graph = step_graph(sketch, "step", micro_batches, 2.0)
    return fuse(StepProblem.build(graph, DEVICES, RooflineCost()), 1000).graph


def test_a_generator_gives_one_problem_and_another_another() -> None:
    found = [problem_arrays(synthetic()(default_rng(seed))) for seed in (3, 3, 4)]
    assert all(np.array_equal(found[0][name], found[1][name]) for name in found[0])
    assert found[0]["kind"].shape != found[2]["kind"].shape


@pytest.mark.parametrize(("wide", "met"), [(True, {1, 2, 4}), (False, {1, 2, 3})])
def test_problems_are_groups_that_devices_can_run_and_a_third_feel_memory(
    wide: bool, met: set[int]
) -> None:
    source = synthetic(wide)
    alone, partly, sizes, phases, kinds = [], [], [], set(), set()
    for seed in range(40):
        problem = source(default_rng(seed))
        graph, topology = problem.graph, problem.topology
        able = np.isfinite(problem.op_seconds)
        assert able.all(axis=0).any()
        assert (problem.op_seconds >= 0.0).all()
        partly.append(not able.all())
        assert (graph.colocation != NONE).all()
        assert 2 <= topology.num_devices <= 32
        assert problem.capacity.tolist() == topology.memory_bytes.tolist()
        assert graph.state_bytes.sum() <= problem.capacity.sum()
        pricer = Pricer(problem)
        everything = [np.full(graph.num_operators, d) for d in range(topology.num_devices)]
        alone.append(any(pricer.price(device).excess <= 0.0 for device in everything))
        sizes.append(graph.num_groups)
        phases.add(int(graph.phase.max()))
        kinds.add(len({device.spec.name for device in topology.devices}))
    assert 0.15 <= 1.0 - np.mean(alone) <= 0.5
    assert 0 < sum(partly) <= 6
    assert max(sizes) == 128
    assert min(sizes) < 40
    assert phases == {Phase.FORWARD, Phase.OPTIMIZER}
    assert met <= kinds


def test_the_first_stage_is_small() -> None:
    for seed in range(20):
        problem = synthetic()(default_rng(seed), stage=0.0)
        assert problem.graph.num_groups <= 24
        assert problem.topology.num_devices <= 3


@pytest.mark.parametrize("seed", range(6))
def test_the_first_micro_batches_of_a_step_are_a_step_of_as_many(seed: int) -> None:
    whole, part = contracted(5, seed), contracted(2, seed)
    cut = first_micro_batches(whole, 2)
    assert cut.num_operators == part.num_operators
    assert cut.flop.sum() == pytest.approx(part.flop.sum())
    device = np.arange(cut.num_groups) % 2
    found = []
    for graph in (cut, part):
        problem = StepProblem.build(graph, DEVICES, RooflineCost())
        price = Pricer(problem).price(device[graph.colocation])
        found.append((price.seconds, price.excess, price.rule))
    assert found[0] == pytest.approx(found[1])
    assert first_micro_batches(whole, 5) is whole


def test_a_step_of_more_samples_has_more_work_and_the_same_parameters() -> None:
    graph = contracted(2, 1)
    more = scaled(graph, 2.0)
    update = graph.phase == Phase.OPTIMIZER
    assert more.flop[~update].tolist() == (2 * graph.flop[~update]).tolist()
    assert more.flop[update].tolist() == graph.flop[update].tolist()
    assert more.state_bytes.tolist() == graph.state_bytes.tolist()
    assert more.tensor_bytes.tolist() == (2 * graph.tensor_bytes).tolist()


def sketched(seed: int) -> tuple[Sketch, int]:
    """An even network without convolutions, and its first layer."""
    sketch = Sketch(default_rng(seed), 1e6, 256.0, 1, 0.0)
    return sketch, sketch.dense()


@pytest.mark.parametrize("seed", range(trials(20, 4)))
def test_experts_share_the_vectors_of_one_layer_and_each_has_all_weights(seed: int) -> None:
    sketch, source = sketched(seed)
    added = sketch.layers[experts(sketch, source)].inputs
    wide = [sketch.layers[end].inputs[0] for end in added[1:]]
    assert len(wide) in (2, 3, 4, 8)
    assert sum(sketch.layers[layer].written for layer in wide) == pytest.approx(4e6)
    sizes = {sketch.parameters[sketch.layers[layer].parameter] for layer in wide}
    assert sizes == {4 * 4 * 256.0**2}
    assert all(sketch.layers[layer].inputs == (added[0],) for layer in wide)


@pytest.mark.parametrize("seed", range(trials(20, 4)))
def test_an_hourglass_joins_levels_of_a_size_and_ends_as_wide_as_it_began(seed: int) -> None:
    sketch, source = sketched(seed)
    end = hourglass(sketch, source)
    assert (sketch.activation, sketch.width) == (1e6, 256.0)
    assert sketch.layers[end].written == 1e6
    joins = [layer.inputs for layer in sketch.layers if layer.kind == Kind.DATA_MOVEMENT]
    assert 2 <= len(joins) <= 5
    written = [[sketch.layers[one].written for one in join] for join in joins]
    assert all(level == grown for level, grown in written)
    assert [level for level, _ in joins] == sorted((level for level, _ in joins), reverse=True)
    assert [grown for _, grown in joins] == sorted(grown for _, grown in joins)


def test_now_and_then_every_block_of_a_second_tower_reads_the_end_of_the_first() -> None:
    found = []
    for seed in range(60):
        layers = draw_network(default_rng(seed), 60).layers
        starts = [number for number, layer in enumerate(layers) if not layer.inputs]
        if len(starts) == 2:
            across = [
                one for layer in layers[starts[1] :] for one in layer.inputs if one < starts[1]
            ]
            assert len(set(across)) == 1
            found.append(len(across))
    assert 1 in found  # joined at the end
    assert max(found) > 2


@pytest.mark.parametrize("seed", range(trials(12, 4)))
def test_a_network_is_captured_as_a_whole_step(seed: int) -> None:
    sketch = draw_network(default_rng(seed), 30)
    graph = step_graph(sketch, "step", 3, 1.0)
    layers, inputs = len(sketch.layers), sum(bool(layer.inputs) for layer in sketch.layers)
    used = [layer.parameter for layer in sketch.layers if layer.parameter != NONE]
    parameters = len(sketch.parameters)
    assert sorted(set(used)) == list(range(parameters))
    assert graph.num_micro_batches == 3
    backward = inputs + len(used)
    assert graph.num_operators == 3 * (layers + backward) + 2 * parameters + parameters
    assert graph.optimizer_bytes.tolist() == graph.parameter_bytes.tolist()
    # every layer with weights costs as much again for each of its two gradients
    flop = sum(
        layer.flop * (bool(layer.inputs) + (layer.parameter != NONE)) for layer in sketch.layers
    )
    assert graph.backward_flop() == pytest.approx(3 * flop)
    # nothing but updates is computed for nobody
    read = np.diff(graph.consumer_ptr) > 0
    assert read.all()
    silent = set(range(graph.num_operators)) - set(graph.producer.tolist())
    last = {op for op in silent if graph.phase[op] == Phase.FORWARD}
    assert not last
    forward = step_graph(sketch, "forward", 1, None)
    assert forward.num_operators == layers
    assert forward.gradient_bytes.sum() == forward.optimizer_bytes.sum() == 0.0


@pytest.mark.parametrize("seed", range(trials(30)))
def test_clusters_have_as_many_devices_as_asked_for_at_most(seed: int) -> None:
    for draw, most in ((random_topology, 32), (random_topology, 3), (pairwise_topology, 8)):
        topology = draw(default_rng(seed), most)
        assert 2 <= topology.num_devices <= most
        apart = ~np.eye(topology.num_devices, dtype=np.bool_)
        assert (topology.bandwidth[apart] > 0).all()
        assert np.isfinite(topology.bandwidth[apart]).all()
        assert (topology.send_port[apart] >= 0).all()
