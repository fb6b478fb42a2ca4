"""Charts and traces hold what the simulator said, and their provenance."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.text import Annotation
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
from experiments.pictures.learning import Curve, Exams, draw_exams, draw_learning_curve
from experiments.pictures.step import (
    DEVICES,
    PORTS,
    SUM_COLOUR,
    draw_gantt,
    draw_stages,
    trace_document,
)
from experiments.pictures.style import draw_bars, draw_rows
from experiments.reporting.tables import Table, markdown_table, read_tables
from experiments.run.artifacts import write_figure, write_json
from experiments.run.provenance import Provenance
from experiments.study.statistics import Interval
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


def test_learning_curve_shows_near_baselines_and_names_far_ones() -> None:
    curve = Curve(seconds=[1, 2, 3], mean=[0.4, 0.35, 0.3], best=[0.38, 0.33, 0.28])
    figure = draw_learning_curve(curve, {"near": 0.3, "far": 9.0}, 0.2, "title")
    axes = figure.axes[0]
    words = " ".join(text.get_text() for text in axes.texts)
    assert "near" in words
    assert "proved lower bound" in words
    assert "far" not in words
    assert "far" in axes.get_title(loc="right")
    low, high = axes.get_ylim()
    assert low < 200
    assert 400 < high < 9000


def test_a_learning_curve_begins_with_the_untrained_policy() -> None:
    own = [(0.0, 0.9), *((float(k), 0.3) for k in range(1, 100))]
    curve = Curve([1.0, 2.0], [0.4, 0.3], [0.4, 0.3], own)
    axes = draw_learning_curve(curve, {}, 0.2, "title").axes[0]
    assert axes.get_ylim()[1] > 900.0
    line = axes.lines[2]
    assert line.get_xydata()[0].tolist() == [0.0, 900.0]
    assert line.get_markevery() == [1]  # the best exam


def test_labels_of_equal_baselines_do_not_overlap() -> None:
    curve = Curve(seconds=[1, 2], mean=[0.4, 0.3], best=[0.4, 0.3])
    baselines = {"a": 0.30, "b": 0.30, "c": 0.3001}
    axes = draw_learning_curve(curve, baselines, 0.2, "title").axes[0]
    heights = sorted(text.xy[1] for text in axes.texts if isinstance(text, Annotation))
    assert len(heights) == 4
    assert min(np.diff(heights)) > 1.0


def test_a_learning_curve_names_eight_baselines_and_tells_who_has_no_plan() -> None:
    curve = Curve([1.0, 2.0, 3.0], [0.30, 0.28, 0.25], [0.25, 0.25, 0.20])
    baselines = {f"planner{number}": 0.20 + 0.002 * number for number in range(11)}
    axes = draw_learning_curve(curve, {**baselines, "lost": np.inf}, 0.19, "title").axes[0]
    words = " ".join(text.get_text() for text in (*axes.texts, axes.title, axes._right_title))
    named = [
        name for name in baselines if any(t.get_text().startswith(f"{name} ") for t in axes.texts)
    ]
    assert named == list(baselines)[:8]
    assert "grey: planner8 216.0 ms, planner9 218.0 ms, planner10 220.0 ms" in words
    assert "no plan: lost" in words
    assert axes.lines[1].get_markevery() == [0, 2]  # where it became better


def test_an_exam_that_was_given_up_is_a_tick_at_the_top() -> None:
    steps = np.array([0.0, 10.0, 20.0])
    run = Exams("run", steps, np.array([np.inf, 1.2, 0.9]), 0.0)
    axes = draw_exams([run], "title", reference="reference: first fit").axes[0]
    (legend,) = axes.figure.legends
    assert "reference: first fit" in [text.get_text() for text in legend.get_texts()]
    axes.figure.draw_without_rendering()
    assert legend.get_window_extent().y1 < axes.bbox.y0  # hides no curve
    (marks,) = [one for one in axes.lines if one.get_marker() == "x"]
    assert marks.get_xdata().tolist() == [0.0]
    assert "given up" in str(marks.get_label())


def test_ratios_are_drawn_where_the_differences_are() -> None:
    series = {"srtf": [1.0, 1.01], "learned": [Interval(0.99, 0.98, 1.0), np.nan]}
    axes = draw_rows(["a", "b"], series, "ratio", "title", bound=[0.97, 0.98]).axes[0]
    low, high = axes.get_xlim()
    assert 0.95 < low < 0.97
    assert 1.01 < high < 1.03


def test_bars_begin_at_their_base_and_none_stands_for_nothing() -> None:
    axes = draw_bars(["a", "b"], {"x": [2.0, 4.0], "y": [3.0, np.nan]}, "s", "title", base=1).axes[
        0
    ]
    drawn = [(bar.get_y(), bar.get_y() + bar.get_height()) for bar in axes.patches]
    assert drawn[:3] == [(1, 2), (1, 4), (1, 3)]
    assert np.isnan(drawn[3][1])
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a", "b"]


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
