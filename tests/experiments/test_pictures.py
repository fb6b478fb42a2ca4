"""Charts and traces hold what the simulator said, and their provenance."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex
from PIL import Image

from agents.pipeline.published import gpipe
from envs.cost import RooflineCost
from envs.files import read_json
from envs.graphs.builder import GraphBuilder
from envs.hardware.builders import planes
from envs.hardware.servers import PcieServer
from envs.hybrid.plan import Stage, ordered
from envs.hybrid.simulation import simulate
from envs.step.allocated import allocated_problem, uniform_allocation
from envs.step.plans import Plan
from envs.step.problem import StepProblem
from envs.step.step import StepSimulator
from envs.step.timeline import Timeline
from experiments.pictures.learning import Curve, draw_learning_curve
from experiments.pictures.step import (
    DEVICES,
    PORTS,
    SUM_COLOUR,
    draw_gantt,
    draw_stages,
    trace_document,
)
from experiments.reporting.tables import Table, markdown_table, read_tables
from experiments.run.artifacts import write_figure, write_json
from experiments.run.provenance import Provenance
from tests.agents.hybrid.test_sbp import shared


@pytest.fixture
def timeline(problem: StepProblem, plan: Plan) -> Timeline:
    return StepSimulator(problem).run(plan.placement.device, plan.order)


def test_gantt_names_every_device_and_every_port_that_is_used(
    problem: StepProblem, timeline: Timeline
) -> None:
    axes = draw_gantt(problem, timeline, "title").axes[0]
    labels = [label.get_text() for label in axes.get_yticklabels()]
    for device in problem.topology.devices:
        assert device.name in labels
    topology = problem.topology
    used = {
        topology.port_names[port]
        for pair in zip(timeline.transfer_source, timeline.transfer_destination, strict=True)
        for port in (topology.send_port[pair], topology.receive_port[pair])
    }
    assert used == set(labels[topology.num_devices :])
    assert axes.get_xlim()[1] > timeline.step_time * 1e3


def test_a_pipe_is_one_row_of_the_gantt() -> None:
    pcie = {"medium": "PCIe", "bandwidth": "16GB/s", "latency": "2us"}
    cable = {"medium": "Ethernet", "bandwidth": "25Gbps", "latency": "5us"}
    topology = planes("t", PcieServer("V100-16GB", 1, pcie, nics=2), 3, cable)
    builder = GraphBuilder("a send")
    builder.add_operator("source")
    builder.add_operator("sink")
    builder.add_use(builder.add_tensor(0, 1e6), 1)
    problem = StepProblem.build(builder.build(), topology, RooflineCost())
    played = allocated_problem(problem, uniform_allocation(topology.network))
    axes = draw_gantt(played, StepSimulator(played).run(np.array([0, 2])), "title").axes[0]
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels[3:] == ["server0 -> server2"]


def test_gantt_bars_cover_the_busy_time_of_each_device(
    problem: StepProblem, timeline: Timeline
) -> None:
    axes = draw_gantt(problem, timeline, "title").axes[0]
    busy = timeline.busy_seconds(problem.topology.num_devices) * 1e3
    drawn = np.zeros(problem.topology.num_devices)
    for collection in axes.collections:
        for path in collection.get_paths():
            box = path.get_extents()
            row = (box.y0 + box.y1) / 2
            if row < len(drawn) - 0.5:
                drawn[round(row)] += box.width
    np.testing.assert_allclose(drawn, busy, rtol=1e-2)


def test_shards_work_as_their_replica_does_and_sums_have_a_colour() -> None:
    stages = (Stage(0, 1, (0, 1), shards=2), Stage(1, 2, (2, 3)))
    step = simulate(shared(300.0, 60.0), ordered(stages, 3, gpipe))
    axes = draw_stages(step, "title").axes[0]
    labels = [label.get_text() for label in axes.get_yticklabels()]
    first, last = (step.problem.topology.devices[d].name for d in (0, 1))
    assert labels[0] == f"{first} to\n{last}"
    assert last not in labels
    assert "0% busy" not in [text.get_text() for text in axes.texts]
    row = labels.index("all-reduce 1")
    bars = axes.collections[0]
    shades = {
        to_hex(shade)
        for path, shade in zip(bars.get_paths(), bars.get_facecolor(), strict=True)
        if round(path.get_extents().y0) == row
    }
    assert shades == {SUM_COLOUR}


def test_a_picture_carries_its_provenance(
    problem: StepProblem, timeline: Timeline, tmp_path: Path
) -> None:
    path = tmp_path / "gantt.png"
    provenance = Provenance(seed=7, inputs={"plan": "f00d"})
    write_figure(path, draw_gantt(problem, timeline, "title"), provenance)
    with Image.open(path) as image:
        image.verify()
        text = dict(image.info)
    assert "meshwright" in text["Software"]
    assert "seed=7" in text["Comment"]
    assert "plan=f00d" in text["Comment"]
    assert [file.name for file in tmp_path.iterdir()] == ["gantt.png"]


def test_trace_has_every_operator_once_and_every_transfer_on_both_ports(
    problem: StepProblem, timeline: Timeline, tmp_path: Path
) -> None:
    write_json(tmp_path / "trace.json", trace_document(problem, timeline))
    events = read_json(tmp_path / "trace.json")["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    operators = [event for event in spans if event["pid"] == DEVICES]
    transfers = [event for event in spans if event["pid"] == PORTS]
    assert sorted(event["name"] for event in operators) == sorted(problem.graph.op_names)
    assert len(transfers) == 2 * len(timeline.transfer_tensor)
    end = max(event["ts"] + event["dur"] for event in operators)
    assert end == pytest.approx(timeline.step_time * 1e6)


def test_no_thread_of_a_trace_does_two_things_at_once(
    problem: StepProblem, timeline: Timeline
) -> None:
    events = trace_document(problem, timeline)["traceEvents"]
    assert isinstance(events, list)
    threads: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events:
        if event["ph"] == "X" and event["dur"] > 0:
            span = (event["ts"], event["ts"] + event["dur"])
            threads.setdefault((event["pid"], event["tid"]), []).append(span)
    for spans in threads.values():
        spans.sort()
        for (_, finish), (start, _) in pairwise(spans):
            assert start >= finish - 1e-6


def test_a_learning_curve_begins_with_the_untrained_policy() -> None:
    own = [(0.0, 0.9), *((float(k), 0.3) for k in range(1, 100))]
    curve = Curve([1.0, 2.0], [0.4, 0.3], [0.4, 0.3], own)
    axes = draw_learning_curve(curve, {}, 0.2, "title").axes[0]
    assert axes.get_ylim()[1] > 900.0
    line = axes.lines[2]
    assert line.get_xydata()[0].tolist() == [0.0, 900.0]
    assert line.get_markevery() == [1]  # the best exam


def test_cells_have_words_where_there_is_no_number() -> None:
    text = markdown_table(
        ["method", "a", "b"], [["nanny", "nan", "+inf %"], ["infer", "1.0", "inf"]]
    )
    rows = [line.split(" | ") for line in text.splitlines()[2:]]
    assert rows == [["| nanny", "not known", "without end |"], ["| infer", "1.0", "without end |"]]


def test_a_table_comes_before_its_note() -> None:
    text = Table("Title", ["a", "b"], [["x", "1"]], "A note.").markdown()
    assert text.splitlines()[2].startswith("| a ")
    assert text.rstrip().endswith("A note.")
    (found,) = read_tables(text)
    assert (found.note, found.rows) == ("A note.", [["x", "1"]])
