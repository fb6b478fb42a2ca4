"""Orders and their prices: topological, played as the simulator does, with its peak memory."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from envs.graphs.builder import GraphBuilder
from envs.graphs.op_graph import Phase
from envs.step.order import ORDERS, Rule, checked_orders, rules_of
from envs.step.price import BestOrder, Pricer
from envs.step.problem import StepProblem
from envs.step.step import NO_COMMUNICATION, SINGLE_PORT, StepSimulator
from tests.envs.step.random_steps import placed_problems, topology_of
from tests.refusal import refusal


@given(placed_problems())
def test_a_price_is_what_the_simulator_says(placed):
    problem, device, order = placed
    for communication in (SINGLE_PORT, NO_COMMUNICATION):
        simulator = StepSimulator(problem, communication=communication)
        timeline = simulator.run(device, order)
        pricer = Pricer(problem, communication)
        for _ in range(2):  # it leaves its working memory as it found it
            seconds, peak = pricer.peaks(device, order)
            assert seconds == timeline.step_time
            np.testing.assert_allclose(peak, timeline.peak_memory, rtol=1e-12)


def test_what_arrives_never_is_played_to_its_end() -> None:
    builder = GraphBuilder("chain")
    first, second = builder.add_operator("a"), builder.add_operator("b")
    builder.add_use(builder.add_tensor(first, 1.0), second)
    topology = topology_of([0, 0], nic_per_server=False)
    problem = StepProblem(
        builder.build(), topology, np.array([[np.inf, 1.0], [1.0, 1.0]]), np.ones((1, 3)),
        topology.memory_bytes,
    )  # fmt: skip
    assert Pricer(problem).peaks(np.array([0, 1]), np.array([0, 1]))[0] == np.inf


@given(placed_problems())
def test_every_rule_gives_a_topological_order(placed):
    problem, device, _ = placed
    pricer, edges = Pricer(problem), problem.graph.edges
    for rule in Rule:
        price = pricer.price(device, (rule,))
        position = np.argsort(price.order)
        assert np.array_equal(price.order[position], np.arange(len(device)))
        assert (position[edges[:, 0]] < position[edges[:, 1]]).all()
        assert StepSimulator(problem).step_time(device, price.order) == price.seconds
        seconds, excess = pricer.prices(device[None], rule)
        assert (seconds[0], excess[0]) == (price.seconds, price.excess)


@given(placed_problems())
def test_a_windowed_order_is_topological_whatever_the_ranking(placed):
    problem, device, order = placed
    edges = problem.graph.edges
    for window in (1, 2):
        position = np.argsort(Pricer(problem).windowed(device, order, window))
        assert np.array_equal(np.sort(position), np.arange(len(device)))
        assert (position[edges[:, 0]] < position[edges[:, 1]]).all()


def test_a_window_limits_the_micro_batches_under_way_on_every_device():
    problem = pipeline(4, 8)
    device, pricer = stage_of(problem), Pricer(problem)
    ranking = pricer.price(device, (Rule.ONE_F_ONE_B,)).order
    for window in (1, 2, 3):
        order = pricer.windowed(device, ranking, window)
        forward = problem.graph.phase == Phase.FORWARD
        under_way = []
        for stage in range(4):
            here = order[device[order] == stage]
            step = np.where(forward[here], 1.0, -0.5)  # two backward operators end a micro-batch
            under_way.append(np.ceil(np.cumsum(step)).max())
        assert under_way[0] == max(under_way) == window


def pipeline(stages: int, micro_batches: int, seconds=(1.0, 1.0, 1.0)) -> StepProblem:
    """Forward, input and weight gradient of every stage; transfers take no time."""
    builder, took, made = GraphBuilder("pipeline"), {}, {}
    for part in range(micro_batches):
        for stage in range(stages):
            name = f"forward {stage} {part}"
            made[0, stage, part] = builder.add_operator(name, micro_batch=part)
            took[name] = seconds[0]
        for stage in reversed(range(stages)):
            for kind, what in ((1, "input"), (2, "weight")):
                name = f"{what} {stage} {part}"
                made[kind, stage, part] = builder.add_operator(
                    name, phase=Phase.BACKWARD, micro_batch=part, mirror=made[0, stage, part]
                )
                took[name] = seconds[kind]
        for stage in range(stages):
            kept = builder.add_tensor(made[0, stage, part], 1.0)
            back = builder.add_tensor(made[1, stage, part], 0.0)
            for kind in (1, 2):
                builder.add_use(kept, made[kind, stage, part])
            builder.add_use(back, made[2, stage, part])
            if stage + 1 < stages:
                builder.add_use(kept, made[0, stage + 1, part])
            if stage > 0:
                builder.add_use(back, made[1, stage - 1, part])
    graph = builder.build()
    topology = topology_of(list(range(stages)), nic_per_server=False)
    column = np.array([took[name] for name in graph.op_names])
    return StepProblem(
        graph, topology, np.repeat(column[:, None], stages, axis=1),
        np.zeros((graph.num_tensors, 3)), topology.memory_bytes,
    )  # fmt: skip


def stage_of(problem: StepProblem) -> np.ndarray:
    return np.array([int(name.split()[1]) for name in problem.graph.op_names])


def span(problem: StepProblem, device: np.ndarray, order: np.ndarray) -> float:
    played = StepSimulator(problem).run(device, order)
    here = [device == d for d in np.unique(device)]
    return max(played.op_finish[own].max() - played.op_start[own].min() for own in here)


def test_weight_gradients_are_told_from_input_gradients():
    problem = pipeline(3, 2)
    graph = problem.graph
    # nothing waits for the gradient of the first stage's input
    expected = [name.startswith(("weight", "input 0")) for name in graph.op_names]
    assert graph.weight_gradient.tolist() == expected


@pytest.mark.parametrize(("p", "m", "seconds"), [(2, 4, (1, 1, 1)), (4, 8, (1, 1, 1))])
def test_closed_forms_of_pipelines(p, m, seconds):
    problem = pipeline(p, m, seconds)
    device, pricer = stage_of(problem), Pricer(problem)
    forward, of_input, weight = seconds
    whole = sum(seconds)
    prices = {rule: pricer.price(device, (rule,)) for rule in Rule}
    # the backward operators of the first stage hold up nothing: its weight gradients come first
    for rule in (Rule.GPIPE, Rule.ONE_F_ONE_B, Rule.INTERLEAVED):
        assert prices[rule].seconds == m * whole + (p - 1) * (forward + of_input)
    h1 = prices[Rule.WINDOW_S]
    assert h1.seconds == m * whole + (p - 1) * (forward + of_input - weight)  # Qi et al. 2023
    assert pricer.peaks(device, h1.order)[1].max() <= p + 1
    h2 = prices[Rule.WINDOW_2S]
    assert span(problem, device, h2.order) == m * whole  # no bubble
    assert prices[Rule.DEFERRED].seconds == m * whole + (p - 1) * forward
    assert pricer.peaks(device, prices[Rule.ONE_F_ONE_B].order)[1].max() <= p
    assert pricer.peaks(device, prices[Rule.GPIPE].order)[1].max() >= m
    assert pricer.peaks(device, prices[Rule.WINDOW_ONE].order)[1].max() <= 2


def test_interleaved_stages_take_turns():
    p, m = 2, 4
    whole = pipeline(2 * p, m)
    device = stage_of(whole) % p
    problem = StepProblem(
        whole.graph, topology_of([0, 1], nic_per_server=False), whole.op_seconds[:, :p],
        whole.transfer_seconds, whole.capacity[:p],
    )  # fmt: skip
    seconds = Pricer(problem).price(device, (Rule.INTERLEAVED,)).seconds
    assert seconds == 2 * m * 3 + (p - 1) * 2  # Narayanan et al. 2021, weight gradients apart


def test_the_best_order_is_the_fastest_that_fits():
    problem = pipeline(4, 8)
    device = stage_of(problem)
    loose = BestOrder(problem)
    assert loose.step_time(device) == 8 * 3 + 3
    assert loose.step_time(device, loose.order(device)) == loose.step_time(device)
    tight = StepProblem(
        problem.graph, problem.topology, problem.op_seconds, problem.transfer_seconds,
        np.full(4, 4.0),
    )  # fmt: skip
    best = Pricer(tight).price(device)
    assert best.excess == 0.0
    assert best.seconds > loose.step_time(device)
    nothing = StepProblem(
        problem.graph, problem.topology, problem.op_seconds, problem.transfer_seconds,
        np.full(4, 0.5), ("gpipe", "one_f_one_b"),
    )  # fmt: skip
    assert Pricer(nothing).price(device).rule == Rule.ONE_F_ONE_B  # the one that overflows least


def test_orders_are_checked():
    with refusal("'2f2b' is not one of gpipe"):
        checked_orders(["2f2b"])
    with refusal("at least one"):
        checked_orders([])
    assert set(rules_of(ORDERS, 8)) == set(Rule)
    assert rules_of(["gpipe", "interleaved", "zb_h1"], 1) == (Rule.ONE_F_ONE_B, Rule.DEFERRED)
