"""Rounds of sends take what their closed forms say."""

from __future__ import annotations

import numpy as np
import pytest

from envs.bandwidth.env import BandwidthEnv
from envs.bandwidth.generator import FixedCut, Send, placed_sends, star
from envs.bandwidth.instance import BandwidthInstance
from envs.step.allocated import allocated_problem
from envs.step.plans import BandwidthAllocation
from envs.step.step import StepSimulator
from tests.refusal import refusal

PCIE = {"medium": "PCIe", "bandwidth": "16GB/s", "latency": "2us"}
ETHERNET = {"medium": "Ethernet", "bandwidth": "25Gbps", "latency": "5us"}
SENDS = [Send(0, 1, 3.0), Send(0, 2, 5.0), Send(0, 3, 4.0)]


def seconds(phases: list[list[list[Send]]], *rate: float) -> float:
    """Of `phases` with static rates of the channels of server 0."""
    topology = star(4, 1.0, np.inf)
    problem, plan, _ = placed_sends("t", topology, phases)
    allocated = allocated_problem(problem, BandwidthAllocation(np.array([*rate, *[0.0] * 9])))
    return StepSimulator(allocated).step_time(plan.placement.device, plan.order)


def test_serial_sends_add_up_and_concurrent_ones_overlap() -> None:
    rates = (0.2, 0.5, 0.3)
    each = [send.nbytes / rate for send, rate in zip(SENDS, rates, strict=True)]
    assert seconds([[[send] for send in SENDS]], *rates) == pytest.approx(sum(each))
    assert seconds([[SENDS]], *rates) == pytest.approx(max(each))
    assert seconds([[SENDS], [SENDS, SENDS[:1]]], *rates) == pytest.approx(2 * max(each) + each[0])


def test_phases_are_cut_where_their_first_round_begins() -> None:
    problem, plan, cut = placed_sends("t", star(4, 1.0, np.inf), [[SENDS], [SENDS[:1], SENDS[1:]]])
    assert plan.violations(problem) == []
    assert cut(problem, plan).tolist() == [0, 6]
    instance = BandwidthInstance.build(problem, plan, cut)
    assert instance.uniform_begin_s == pytest.approx([0.0, 15.0, 15.0 + 9.0 + 15.0])
    whole = BandwidthEnv.of_plan(problem, plan, phases=FixedCut((0,)))
    assert whole.generator.bounds.phases == 1


def test_what_is_no_send_is_refused() -> None:
    topology = star(4, 1.0, np.inf)
    for send in (Send(0, 0, 1.0), Send(0, 4, 1.0), Send(-1, 0, 1.0), Send(0, 1, 0.0)):
        with refusal(r"t 0\.0\.0"):
            placed_sends("t", topology, [[[send]]])
    for phases in ([[]], [[SENDS], [[]]]):
        with refusal("without sends"):
            placed_sends("t", topology, phases)
