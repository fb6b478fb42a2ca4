"""Charts and traces hold what the simulator said, and their provenance."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from agents.pipeline.published import gpipe
from envs.cost import RooflineCost
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
    draw_gantt,
    draw_stages,
    trace_document,
)
from experiments.pictures.style import draw_rows
from experiments.reporting.tables import Table, markdown_table, read_tables
from experiments.run.artifacts import write_figure
from experiments.run.provenance import Provenance
from experiments.run.statistics import Interval
from tests.agents.hybrid.test_sbp import two_layers


@pytest.fixture
def timeline(problem: StepProblem, plan: Plan) -> Timeline:
    return StepSimulator(problem).run(plan.placement.device, plan.order)


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


def test_shards_work_as_their_replica_does() -> None:
    stages = (Stage(0, 1, (0, 1), shards=2), Stage(1, 2, (2, 3)))
    step = simulate(two_layers(300.0, 60.0), ordered(stages, 3, gpipe))
    axes = draw_stages(step, "title").axes[0]
    labels = [label.get_text() for label in axes.get_yticklabels()]
    first, last, *others = (device.name for device in step.problem.topology.devices[:4])
    assert labels[:4] == [f"{first} to\n{last}", *others, "all-reduce 1"]


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
    problem: StepProblem, timeline: Timeline
) -> None:
    events: Any = trace_document(problem, timeline)["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    operators = [event for event in spans if event["pid"] == DEVICES]
    assert sorted(event["name"] for event in operators) == sorted(problem.graph.op_names)
    assert len(spans) - len(operators) == 2 * len(timeline.transfer_tensor)
    end = max(event["ts"] + event["dur"] for event in operators)
    assert end == pytest.approx(timeline.step_time * 1e6)
    threads: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in spans:
        times = event["ts"], event["ts"] + event["dur"]
        threads.setdefault((event["pid"], event["tid"]), []).append(times)
    for held in threads.values():  # none does two things at once
        for (_, finish), (start, _) in pairwise(sorted(held)):
            assert start >= finish - 1e-6


def test_a_learning_curve_begins_with_the_untrained_policy() -> None:
    own = [(0.0, 0.9), *((float(k), 0.3) for k in range(1, 100))]
    axes = draw_learning_curve(Curve([1.0], [0.4], [0.4], own), {}, 0.2, "title").axes[0]
    assert axes.get_ylim()[1] > 900.0
    assert np.asarray(axes.lines[2].get_xydata())[0].tolist() == [0.0, 900.0]


def test_a_learning_curve_of_nothing_that_fits_is_drawn() -> None:
    nothing = [np.inf, np.nan]
    curve = Curve([1.0, 2.0], nothing, nothing, [(0.0, np.inf)])
    for baselines in ({}, {"none": np.inf}, {f"method {k}": 1.0 + k for k in range(100)}):
        draw_learning_curve(curve, baselines, 0.2, "title").canvas.draw()


def test_rows_show_their_intervals_and_nothing_for_what_is_not_known() -> None:
    series: dict[str, list[Interval | float]] = {
        "a": [Interval(1.2, 1.1, 1.5), np.nan],
        "b": [1.0, 2.0],
    }
    bars = draw_rows(["x", "y"], series, "ratio", "title").axes[0].containers
    ends = [one[2][0].get_segments()[0][:, 0].tolist() for one in bars]
    assert ends == [pytest.approx([1.1, 1.5]), [1.0, 1.0]]


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
