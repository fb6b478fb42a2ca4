"""The model that chooses rates, and servers that can change places."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.bandwidth.joint_search.pipes import Pipes
from agents.bandwidth.joint_search.rates import RateModel, servers_alike
from agents.step.grouping import GroupedProblem
from envs.graphs.builder import GraphBuilder
from envs.step.allocated import allocated_problem, uniform_allocation
from envs.step.plans import BandwidthAllocation, Plan
from envs.step.problem import StepProblem
from envs.step.step import StepSimulator
from tests.agents.bandwidth.joint_steps import best_of_all, level_allocations, unplaced_steps
from tests.agents.bandwidth.placed_steps import cluster, placed_steps, problem_of, with_capacities
from tests.strength import examples


def test_servers_of_equal_planes_can_change_places() -> None:
    network = cluster(4, 2, 2).network
    assert all(servers_alike(network, a, b) for a, b in combinations(range(4), 2))


def test_a_slower_link_tells_a_server_apart() -> None:
    topology = cluster(3, 1, 2)
    names = topology.network.link_names
    slow = [0.5 if name.startswith("server1/nic0") else 1.0 for name in names]
    assert slow.count(0.5) > 0
    network = with_capacities(topology, slow).network
    assert not servers_alike(network, 0, 1)
    assert not servers_alike(network, 1, 2)
    assert servers_alike(network, 0, 2)


@examples(40)
@given(step=placed_steps())
def test_servers_alike_have_pipes_alike(step: tuple[StepProblem, Plan]) -> None:
    topology = step[0].topology
    network = topology.network
    uniform = allocated_problem(step[0], uniform_allocation(network))
    servers = network.num_servers
    full = Pipes.of(uniform, topology).full.reshape(servers, servers)
    for a, b in combinations(range(servers), 2):
        if servers_alike(network, a, b):
            swap = np.arange(servers)
            swap[[a, b]] = b, a
            assert np.allclose(full[np.ix_(swap, swap)], full)


LEVELS = (0.5, 1.0)
CLOSE = 1e-4  # relative; HiGHS's tolerances and big-M rows
MOST_ROUNDS = 60


def model_of(problem: StepProblem, levels: tuple[float, ...] = LEVELS) -> RateModel:
    uniform = allocated_problem(problem, uniform_allocation(problem.topology.network))
    pipes = Pipes.of(uniform, problem.topology)
    return RateModel(GroupedProblem.unfused(uniform), pipes, levels, 1e-7, 30)


def solved(model: RateModel) -> tuple[float, np.ndarray]:
    """Seconds and the solution of the model once nothing is left to teach it."""
    for _ in range(MOST_ROUNDS):
        solver = model.program.solver(time_limit=30.0)
        solver.setOptionValue("mip_rel_gap", 1e-7)
        solver.run()
        solution = np.array(solver.getSolution().col_value)
        seconds = solver.getInfo().objective_function_value * model.scale
        if not model.learn(solution, np.inf):
            return seconds, solution
    raise AssertionError("the model goes on learning")


def chain(sizes: list[float], seconds: list[float], servers: int, latency: float) -> StepProblem:
    """A DAG of four operators: 0 for 1 and 2, 1 for 3."""
    builder = GraphBuilder("four")
    for op in range(4):
        builder.add_operator(f"op{op}")
    first = builder.add_tensor(0, sizes[0])
    builder.add_use(first, 1)
    builder.add_use(first, 2)
    builder.add_use(builder.add_tensor(0, sizes[1]), 2)
    builder.add_use(builder.add_tensor(1, sizes[2]), 3)
    return problem_of(builder, seconds, cluster(servers, 1, 2, latency=latency))


@examples(12)
@given(
    sizes=st.lists(st.sampled_from([0.1, 0.5, 1.0, 3.0]), min_size=3, max_size=3),
    seconds=st.lists(st.sampled_from([0.5, 1.0, 2.5]), min_size=4, max_size=4),
    servers=st.integers(2, 3),
    latency=st.sampled_from([0.0, 0.25]),
)
def test_the_optimum_is_that_of_all_placements_orders_and_levels(
    sizes: list[float], seconds: list[float], servers: int, latency: float
) -> None:
    problem = chain(sizes, seconds, servers, latency)
    best = best_of_all(problem, level_allocations(problem.topology.network, LEVELS))
    found, _ = solved(model_of(problem))
    assert found == pytest.approx(best, rel=CLOSE)


def test_a_solution_can_be_played_as_it_says() -> None:
    problem = chain([3.0, 1.0, 1.0], [1.0, 2.5, 2.5, 2.5], 3, 0.25)
    model = model_of(problem, (0.25, 0.5, 0.75, 1.0))
    seconds, solution = solved(model)
    network = problem.topology.network
    rate = np.maximum(solution[model.rate], 0.0) * model.pipes.full.max()
    # HiGHS keeps rows to a tolerance
    over = (network.incidence @ rate / network.link_capacity).max()
    assert over <= 1.0 + 1e-6
    allocation = BandwidthAllocation(rate / max(1.0, over))
    assert allocation.violations(network) == []
    assert (allocation.pipes(network).ravel() >= model.pipe_rates(solution) * (1 - 1e-6)).all()
    device, order = model.devices(solution), model.order(solution)
    played = StepSimulator(allocated_problem(problem, allocation)).step_time(device, order)
    assert played <= seconds * (1 + CLOSE)
    assert played == pytest.approx(
        StepSimulator(model.played(solution)).step_time(device, order), rel=CLOSE
    )


def test_a_destination_may_have_more_than_one_link_carries() -> None:
    """Two operators that do not fit one server: all of both planes for the one pipe."""
    builder = GraphBuilder("two")
    for op in range(2):
        builder.add_operator(f"op{op}")
        builder.add_parameter(f"w{op}", op, parameter=4.0, gradient=0.0, optimizer=0.0)
    builder.add_use(builder.add_tensor(0, 4.0), 1)
    problem = problem_of(builder, [1.0, 1.0], cluster(3, 1, 2, memory=7.0))
    model = model_of(problem)
    seconds, solution = solved(model)
    assert seconds == pytest.approx(1.0 + 4.0 / 2.0 + 1.0, rel=CLOSE)
    assert model.pipe_rates(solution).max() == pytest.approx(2.0)  # a link carries 1


@pytest.mark.parametrize(("sizes", "seconds"), [((1.0, 1.0), 1.0), ((1.0, 0.5), 1.0)])
def test_what_one_pipe_has_another_has_not(sizes: tuple[float, float], seconds: float) -> None:
    """Three operators that need three servers: two tensors leave the first at once."""
    builder = GraphBuilder("fork")
    for op in range(3):
        builder.add_operator(f"op{op}")
        builder.add_parameter(f"w{op}", op, parameter=4.0, gradient=0.0, optimizer=0.0)
    for op, size in enumerate(sizes, start=1):
        builder.add_use(builder.add_tensor(0, size), op)
    problem = problem_of(builder, [0.0, 0.0, 0.0], cluster(3, 1, 2, memory=7.0))
    best = best_of_all(problem, level_allocations(problem.topology.network, LEVELS))
    found, _ = solved(model_of(problem))
    assert found == pytest.approx(best, rel=CLOSE)
    assert found == pytest.approx(seconds, rel=CLOSE)


@examples(20)
@given(problem=unplaced_steps(operators=(2, 5)), data=st.data())
def test_rows_hold_for_every_placement_at_every_level(
    problem: StepProblem, data: st.DataObject
) -> None:
    """Fixing a placement and levels leaves a program that says no more than the simulator."""
    model = model_of(problem)
    network = problem.topology.network
    devices = st.integers(0, problem.topology.num_devices - 1)
    groups = model.grouped.num_groups
    device = np.array(data.draw(st.lists(devices, min_size=groups, max_size=groups)))
    share = data.draw(st.sampled_from([0.25, 0.5]))
    alone = model.full * share
    rate = alone[model.pipes.of_channel] / np.bincount(
        model.pipes.of_channel, minlength=model.pipes.count
    )[model.pipes.of_channel]  # fmt: skip
    allocation = BandwidthAllocation(rate)
    if allocation.violations(network) or len(np.unique(model.full[model.full > 0])) > 1:
        return
    simulator = StepSimulator(allocated_problem(problem, allocation))
    placed = model.grouped.fusion.expand(device)
    seconds = simulator.step_time(placed, np.arange(problem.graph.num_operators))
    model = model_of(problem, (share, 1.0))
    solver = model.program.solver(time_limit=30.0)
    chosen = [int(model.place[g, d]) for g, d in enumerate(device)]
    for column in chosen:
        solver.changeColBounds(column, 1.0, 1.0)
    used = model.level[:, 0][model.level[:, 0] >= 0]
    for column in used.tolist():
        solver.changeColBounds(column, 1.0, 1.0)
    solver.run()
    if str(solver.getModelStatus()).endswith("kInfeasible"):
        return  # ruled out by the numbering of interchangeable devices
    assert solver.getInfo().objective_function_value * model.scale <= seconds * (1 + 1e-6)
