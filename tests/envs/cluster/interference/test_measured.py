"""Models of measured jobs: the published figures, the rates that follow, and what is refused."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crowds import holdings, rates
from made_up import arrived, check_story, named_trace, play, profiles, step_model
from numpy.testing import assert_array_equal

from agents.cluster.replay import replay
from envs.cluster.interference.analytic import SharedBottleneck
from envs.cluster.interference.deepshare import (
    ISOLATED,
    SHARED,
    DeepShareContention,
    read_deepshare,
)
from envs.cluster.interference.gavel import GavelPairs
from envs.cluster.interference.pollux import (
    PLACEMENTS,
    SCALABILITY,
    PolluxLocality,
    read_pollux,
    smallest_rotation,
)
from envs.cluster.interference.rates import ALONE, CONTENTION, GPU_TIME, RateModel
from envs.cluster.interference.shared_hosts import SharedHosts
from envs.cluster.nodes import Cluster
from envs.cluster.workload.trace import Labels, Trace
from envs.files import read_json
from tests.agents.cluster.further_policies import joint_choice
from tests.refusal import refusal

A, B, BIG = "('a', 1)", "('b', 1)", "('a', 2)"
# Two job types on two GPU types; `b` does not fit beside itself, `a` on two GPUs not on x.
FAST = {
    A: {"null": 10.0, A: [6.0, 6.0], B: [8.0, 3.0]},
    B: {"null": 4.0, A: [3.0, 8.0], B: [0.0, 0.0]},
    BIG: {"null": 18.0, BIG: [0.0, 0.0]},
}
SLOW = {
    A: {"null": 5.0, A: [2.0, 2.0], B: [0.0, 0.0]},
    B: {"null": 1.0, A: [0.0, 0.0], B: [0.0, 0.0]},
    BIG: {"null": 0.0, BIG: [0.0, 0.0]},
}
SPREAD = {**FAST, BIG: {**FAST[BIG], "null": 12.0}}
TABLE, PLACED, SCALED = "table.json", f"net/{PLACEMENTS}", f"net/{SCALABILITY}"
TIMES = "local_bsz,step_time,sync_time\n"
HEADS = {PLACED: f"placement,{TIMES}", SCALED: f"num_nodes,num_replicas,{TIMES}"}
FILES = {
    TABLE: json.dumps({"y": FAST, "x": SLOW, "y_unconsolidated": SPREAD, "x_unconsolidated": SLOW}),
    ISOLATED: ',isol_thp\n"m,2,2",10\n"m,4,2",18\n"m,4,4",12\n',
    SHARED: '\ufeff,"m,2,2","m,4,2","m,4,4"\n"m,2,2",0.9,0.8,0.2\n"m,4,2",0.5,1.1,0.7\n'
    '"m,4,4",0.6,0.4,1.0\n',
    PLACED: "1,10,1,0\n1,20,2,0\n2,10,1.1,0.1\n4,10,1.2,0.2\n11,10,1.6,0.6\n22,10,2,1\n"
    "13,10,3,2\n112,10,1.5,0.5",
    SCALED: "6,6,10,4,3\n6,12,10,5,4",
}
PAIR = {("a", "a"): 0.6, ("a", "b"): 0.8, ("b", "a"): 0.75, ("b", "b"): 0.25}
Built = Callable[[Path], RateModel]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "net").mkdir()
    for name, text in FILES.items():
        (tmp_path / name).write_text(HEADS.get(name, "") + text)
    return tmp_path


def altered(files: Path, change: Callable[[Any], object]) -> Path:
    """With a change of Gavel's tables."""
    table = read_json(files / TABLE)
    change(table)
    (files / TABLE).write_text(json.dumps(table))
    return files


def gavel(files: Path, turns: float = 0.5, reference: str = "y") -> GavelPairs:
    return GavelPairs(str(files / TABLE), {"V100": "y", "K80": "x"}, reference, turns, 0)


def deepshare(files: Path) -> DeepShareContention:
    return DeepShareContention(str(files))


def pollux(files: Path, eta: float | None = None, **batch: float) -> PolluxLocality:
    return PolluxLocality(str(files), batch or {"net": 10}, eta, 0)


def hosts(files: Path, table: str = "y", turns: float = 0.25, **changed: Any) -> SharedHosts:
    settings = {"cores": None, "core_input": 800.0, "uplink": None, **changed}
    return SharedHosts(profiles(), step_model(), str(files / TABLE), table, turns, **settings)


@pytest.fixture
def published(data: Path) -> GavelPairs:
    return GavelPairs(str(data / "interference/gavel/simulation_throughputs.json.gz"))


def test_the_published_figures(published: GavelPairs, data: Path) -> None:
    assert sum(min(both) > 0.0 for both in published.reference.pairs.values()) == 636
    assert len(published.models) == 26
    assert published.feasible.sum() == 636
    for ratios in (published.reference.ratios(published.models), published.pair):
        assert ratios[published.feasible].mean() == pytest.approx(0.657, abs=5e-4)
    ratio = read_deepshare(data / "interference/deepshare").ratio
    assert ratio.shape == (36, 36)
    assert ratio.mean() == pytest.approx(0.789, abs=5e-4)
    assert ratio.min() == 0.123
    assert ratio.max() <= 1.0


def test_rates_of_gavels_table(published: GavelPairs) -> None:
    measured = read_json(published.path)
    names = ["ResNet-18 (batch size 128)", "ResNet-50 (batch size 16)"]
    trace = named_trace([*names, names[1], names[0]], [1, 1, 4, 1], [500, 500, 1000, 1000])
    cluster = Cluster.uniform(4, 4, gpu_types=("V100", "P100"))
    simulator = arrived(published, cluster, trace)
    first, second, four = (str((names[at], gpus)) for at, gpus in ((0, 1), (1, 1), (1, 4)))
    row = measured["v100"][first]
    alone = [row["null"], measured["v100"][second]["null"]]
    spread = measured["p100_unconsolidated"][four]["null"] / measured["v100"][four]["null"]
    p100 = measured["p100"][first]["null"] / alone[0]
    expected = [row[second][0] / alone[0], row[second][1] / alone[1], 0.0, p100]
    found = play(simulator, {0: [(0, 1)], 1: [(0, 1)], 3: [(2, 1)]})
    assert found == pytest.approx(expected, rel=1e-12)
    assert play(simulator, {2: [(2, 2), (3, 2)]})[2] == pytest.approx(spread, rel=1e-12)


def test_what_does_not_fit_takes_turns_and_can_be_asked_for(files: Path) -> None:
    model = gavel(files, turns=0.4)
    assert model.pair == pytest.approx(np.array([[0.6, 0.8], [0.75, 0.4]]))
    assert model.feasible.tolist() == [[True, True], [True, False]]
    trace = named_trace(["b", "b", "a"], [1, 1, 1], [300, 300, 300])
    simulator = arrived(model, Cluster.uniform(1, 1), trace)
    assert play(simulator, {0: [(0, 1)], 1: [(0, 1)]}) == [0.4, 0.4, 0.0]
    check_story(simulator, ({2: [(0, 1)]}, [0.4 * 0.75, 0.4 * 0.75, 0.8 * 0.8]))


def test_a_job_that_does_not_fit_a_gpu_type_must_not_be_allowed_there(files: Path) -> None:
    both = Cluster.uniform(2, 2, gpu_types=("V100", "K80"))
    trace = named_trace(["a"], [2])
    with refusal(r"record 0: field 'gpu_type': .* 'K80'"):
        gavel(files).tables(trace, both)
    trace = replace(trace, gpu_type=Labels.of(["V100|P100"]))
    assert gavel(files).tables(trace, both).speed[0].tolist() == [1.0, 0.0]


def test_jobs_without_a_model_draw_what_runs_everywhere(files: Path) -> None:
    model, one = gavel(files), Cluster.uniform(2, 2)
    row = model.tables(Trace.of("t", [0] * 60, [1] * 60, [1, 2] * 30), one).row
    assert set(row[:, 0].tolist()) == {0, 1}
    two = Trace.of("t", [0] * 20, [1] * 20, [2] * 20)
    assert model.tables(two, one).row.tolist() == [[0]]  # `b` was not measured on two GPUs
    with refusal("no profile suits a job of 2 GPUs"):
        model.tables(two, Cluster.uniform(2, 2, gpu_types=("V100", "K80")))


def test_faster_when_spread_counts_as_1(files: Path) -> None:
    altered(files, lambda t: t["y_unconsolidated"][BIG].update(null=27.0))
    result = gavel(files).tables(named_trace(["a"], [2]), Cluster.uniform(2, 2))
    assert result.locality.max() == 1.0


def test_the_rule_of_deepshares_authors(data: Path) -> None:
    """min over the other spanning jobs of a shared node, not below the floor; 2 to 8 GPUs."""
    place = data / "interference/deepshare"
    with open(place / SHARED, encoding="utf-8-sig", newline="") as stream:
        lines = list(csv.reader(stream))
    ratio = {
        (line[0], name): float(value)
        for line in lines[1:]
        for name, value in zip(lines[0][1:], line[1:], strict=True)
    }
    rng = np.random.default_rng(5)
    names = ["MobileNetV3", "FSDP", "MoE", "DLRM"]
    models, gangs = rng.choice(names, 30).tolist(), rng.choice([2, 4, 8], 30)
    sim = arrived(deepshare(place), Cluster.uniform(10, 8), named_trace(models, gangs.tolist()))
    for job in range(30):
        nodes = int(rng.choice([n for n in (1, 2, 4, 8) if n <= gangs[job]]))
        room = np.flatnonzero(sim.state.nodes["free"] >= gangs[job] // nodes)
        if len(room) >= nodes:
            chosen = rng.permutation(room)[:nodes].tolist()
            play(sim, {job: [(node, int(gangs[job]) // nodes) for node in chosen]})
    held, crowded = holdings(sim), 0
    for job, rate in rates(sim).items():
        beside = [o for o in held if o != job and set(held[o]) & set(held[job])]
        key = {o: f"{models[o]},{gangs[o]},{len(held[o])}" for o in [*beside, job]}
        others = [o for o in beside if len(held[o]) > 1 and len(held[job]) > 1]
        left = max(0.35, min(ratio[key[job], key[o]] for o in others)) if others else 1.0
        crowded += len(others) > 1
        alone = sim.tables.locality[sim.tables.profile[job], 0, 0, len(held[job]) - 1]
        assert rate == pytest.approx(alone * left, rel=1e-12)
    assert crowded > 5


def test_throughput_by_nodes_and_the_floor(files: Path) -> None:
    model, trace = deepshare(files), named_trace(["m", "m"], [2, 4])
    result = model.tables(trace, Cluster.uniform(8, 2))
    assert result.locality[0, 0, 0] == pytest.approx([1.0, 1.0, 1.0, 1.0])
    assert result.locality[1, 0, 0] == pytest.approx([1.0, 1.0, 1.0, 12 / 18])
    assert result.row.tolist() == [[0, 0, 0, 0], [1, 1, 1, 2]]
    assert model.pair.max() == 1.0  # 1.1 was measured
    starts = {0: [(0, 1), (1, 1)], 1: [(node, 1) for node in range(4)]}
    simulator = arrived(model, Cluster.uniform(8, 4), trace)
    check_story(simulator, (starts, [0.35, 12 / 18 * 0.6]))  # 0.2 was measured
    assert simulator.state.jobs["rate"][0] == 0.35


@pytest.mark.parametrize("name", ["bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3"])
def test_exact_at_every_point_that_pollux_measured(data: Path, name: str) -> None:
    place = data / "interference/pollux"
    model = read_pollux(place)[name]
    measured = defaultdict(lambda: defaultdict(list))  # times by batch, then nodes and replicas
    for file in (PLACEMENTS, SCALABILITY):
        with open(place / name / file, newline="") as stream:
            for row in csv.DictReader(stream):
                batch = int(row["local_bsz"])
                times = float(row["step_time"]), float(row["sync_time"])
                if "placement" in row:
                    ring = [int(d) for d in row["placement"]]
                    key = len(ring), sum(ring)
                    same = smallest_rotation(ring[1:] + ring[:1])
                    assert model.curves[*key, *same][batch] == times
                else:
                    key = int(row["num_nodes"]), int(row["num_replicas"])
                measured[batch][key].append(times)
    batch = sorted(measured)[len(measured) // 2]
    spread = model.spread(batch)
    for (nodes, replicas), found in measured[batch].items():
        assert spread.seconds(nodes, replicas) == pytest.approx(np.mean(found, axis=0))


def test_step_times_are_interpolated(files: Path) -> None:
    model = read_pollux(files)["net"]
    assert model.spread(15).seconds(1, 1) == (1.5, 0.0)
    spread = model.spread(10)
    assert spread.seconds(2, 4) == (2.5, 1.5)  # the mean of 22 and 13
    assert spread.seconds(2, 3) == pytest.approx((2.05, 1.05))  # between 11 and that
    assert spread.seconds(1, 3) == pytest.approx((1.15, 0.15))
    assert spread.seconds(6, 9) == pytest.approx((4.5, 3.5))
    assert spread.seconds(4, 9) == pytest.approx((1.5 + 3.0 / 3, 0.5 + 3.0 / 3))
    assert spread.seconds(9, 99) == (5.0, 4.0)  # the nearest measurement
    with refusal("no time at 21 samples per GPU"):
        model.spread(21)


def test_rates_by_nodes(files: Path) -> None:
    trace, cluster = named_trace(["net"] * 3, [1, 2, 4]), Cluster.uniform(4, 2, nodes_per_rack=2)
    alone, contending = (pollux(files, eta).tables(trace, cluster) for eta in (None, 0.2))
    assert alone.kind == ALONE
    assert alone.locality[0, 0].min() == 1.0
    assert alone.locality[1, 0, 2, :2] == pytest.approx([1.0, 1.1 / 1.6])
    assert alone.locality[2, 0, 1, :3] == pytest.approx([1.0, 1.0, 1.0])
    assert (contending.kind, contending.eta) == (CONTENTION, 0.2)
    assert contending.communication[1, 0, :, 1] == pytest.approx([0.0, 0.6 / 1.6, 0.6 / 1.6])


@pytest.mark.parametrize(
    ("ring", "smallest"),
    [([3, 0, 1, 2], (1, 2, 3)), ([2, 1, 2, 1], (1, 2, 1, 2)), ([0], ())],
)
def test_rotations(ring: list[int], smallest: tuple[int, ...]) -> None:
    assert smallest_rotation(ring) == smallest


def test_pairs_multiply_what_the_hosts_leave(files: Path) -> None:
    """Of three jobs on a node, two share its GPUs; inputs of all ask for 1.6 of its PCIe."""
    trace = named_trace(["hungry", "mute", "hungry"], [2, 2, 2], [500, 500, 1000])
    simulator = arrived(hosts(files), Cluster.uniform(1, 4), trace)
    tables = simulator.tables
    first, second = ("ab"[tables.row[tables.profile[job], 0]] for job in range(2))
    check_story(
        simulator,
        (
            {job: [(0, 2)] for job in range(3)},
            [PAIR[first, second] / 1.6, PAIR[second, first], 1 / 1.6],
        ),
        ({1: None}, [1 / 1.6, 0.0, 1 / 1.6]),
        ({2: None}, [1.0, 0.0, 0.0]),
    )


def test_alone_it_is_the_step_model(files: Path) -> None:
    trace = named_trace(["mute", "chatty", "hungry"] * 9, [1, 2, 3] * 9)
    cluster = Cluster.uniform(2, 4, gpu_types=("V100", "T4"))
    ours = hosts(files).tables(trace, cluster)
    theirs = SharedBottleneck(profiles(), step_model(), 0).tables(trace, cluster)
    for column in ("speed", "locality", "communication"):
        one, other = getattr(ours, column), getattr(theirs, column)
        assert_array_equal(one[ours.profile], other[theirs.profile])
    demand = theirs.demand[theirs.profile]
    assert_array_equal(ours.demand[ours.profile], np.pad(demand, ((0, 0), (0, 2))))
    assert (ours.demand[:, GPU_TIME] > 0.0).any()  # in the tables, but not read
    rows = ours.row[ours.profile, 0]
    assert {(p, r) for p, r in zip(theirs.profile, rows, strict=True)} == {
        (p, r) for p in range(3) for r in range(2)
    }  # a row is drawn whatever the profile is


def test_processors_prepare_the_inputs_of_a_node(files: Path) -> None:
    """Each GPU of `hungry` asks for half of the only core: two for all of it, three for 1.5."""
    trace = named_trace(["hungry", "hungry", "mute", "hungry"], [1, 1, 1, 1])
    check_story(
        arrived(hosts(files, cores=1), Cluster.uniform(2, 4), trace),
        ({job: [(0, 1)] for job in range(3)}, [1.0, 1.0, 1.0, 0.0]),
        ({3: [(0, 1)]}, [1 / 1.5, 1 / 1.5, 1.0, 1 / 1.5]),
        ({0: None}, [0.0, 1.0, 1.0, 1.0]),
    )


def test_gangs_on_several_racks_share_the_uplinks(files: Path) -> None:
    """Between racks `chatty` sends 100 bytes in 3 s: two thirds of the uplink of 50 bytes/s."""
    trace, cluster = named_trace(["chatty"] * 3, [2] * 3), Cluster.uniform(4, 4, nodes_per_rack=2)
    simulator = arrived(hosts(files, uplink=50.0), cluster, trace)
    near, far = 1.1 / 2.0, 1.1 / 3.0
    # The second stays in its rack; on node 0 both ask for the whole port.
    alone = play(simulator, {0: [(0, 1), (2, 1)], 1: [(0, 1), (1, 1)]})
    assert alone == pytest.approx([far, near, 0.0])
    # No node with the first, but both racks.
    check_story(simulator, ({2: [(1, 1), (3, 1)]}, [far / (4 / 3), near, far / (4 / 3)]))
    assert play(simulator, {2: None}) == alone


def test_pairs_may_be_predicted(files: Path) -> None:
    def predicted(models: Sequence[str]) -> np.ndarray:
        return np.full((len(models), len(models)), 0.5) + 0.25 * (np.array(models) == "b")

    trace, cluster = named_trace(["mute", "mute"], [1, 1]), Cluster.uniform(1, 1)
    measured, learned = (
        hosts(files, predicted=p).tables(trace, cluster) for p in (None, predicted)
    )
    assert learned.pair.tolist() == [[0.5, 0.75], [0.5, 0.75]]
    assert_array_equal(learned.row, measured.row)


def test_it_can_be_believed_without_a_look_at_durations(files: Path) -> None:
    trace = Trace.of("t", range(0, 40, 4), [30] * 10, [1, 2] * 5)
    trace = replace(trace, gpu_milli=np.full(10, 500, np.int32))
    policy, cluster, model = joint_choice(), Cluster.uniform(2, 2), hosts(files)
    finish = replay(policy, cluster, trace, rates=model).finish
    policy.believed = model
    assert_array_equal(replay(policy, cluster, trace, rates=model).finish, finish)


@pytest.mark.parametrize(
    ("build", "file", "text", "message"),
    [
        (gavel, TABLE, "[]", r"table\.json: .*is not a mapping"),
        (gavel, TABLE, "{}", "has no GPU type"),
        (deepshare, ISOLATED, ',x\n"m,2",10\n', f"{ISOLATED}: record row 1 .*: 'm,2' is no 'model"),
        (deepshare, ISOLATED, ',x\n"m,2,4",10\n', "'m,2,4' is no"),
        (deepshare, ISOLATED, ',x\n"m,2,2",0\n', "row 1 .*: field 'x': '0' is not above 0"),
        (deepshare, ISOLATED, ',x\n"m,2,2",1\n"m,2,2",1\n', "row 2 .*: 'm,2,2' stands twice"),
        (deepshare, ISOLATED, ',x\n"m,2,2",1\n', f"{ISOLATED}: record m,4,2: is missing"),
        (deepshare, ISOLATED, "", "is empty"),
        (deepshare, SHARED, ',"m,2,2"\n"m,2,2",0.9,1\n', f"{SHARED}: record row 1 .*: has 3 cells"),
        (deepshare, SHARED, ',"m,2,2"\n"m,4,2",0.9\n', "has other jobs in its rows"),
        (deepshare, SHARED, ',"m,2,2"\n"m,2,2",none\n', "field 'm,2,2': 'none' is not a number"),
        (deepshare, SHARED, ',"m,2,2","m,4,2"\n"m,2,2",1,1\n', "has other jobs in its rows"),
        (pollux, PLACED, "1,10,1", r"placements.csv: record row 1 \(line 2\): has 3 cells"),
        (pollux, PLACED, "101,10,1,0", "row 1 .*: field 'placement': '101' is no placement"),
        (pollux, PLACED, "1,0,1,0", "field 'local_bsz': '0' is zero"),
        (pollux, PLACED, "1,10,x,0", "field 'step_time': 'x' is not a number"),
        (pollux, PLACED, "1,10,1,1", "field 'sync_time': '1' is not below the step"),
        (pollux, PLACED, "12,10,2,1\n21,10,2,1", "row 2 .*: field 'local_bsz': '10' stands twice"),
        (pollux, SCALED, "6,5,10,2,1", "field 'num_replicas': '5' is less than num_nodes"),
    ],
)
def test_a_malformed_file_names_the_place(
    files: Path, build: Built, file: str, text: str, message: str
) -> None:
    (files / file).write_text(HEADS.get(file, "") + text)
    with refusal(message):
        build(files)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t["y"][A].pop("null"), r"field 'y\.\('a', 1\)\.null': is missing"),
        (lambda t: t["y"][A].update(null=-1), r"\.null': -1 is not greater than or equal to 0"),
        (lambda t: t["y"][A].update({A: [1.0]}), r"\[1.0\] has fewer items than"),
        (lambda t: t["y"][A].update({B: [8.0, 2.0]}), "differs from the same pair"),
        (lambda t: t["y"][A].update({"('c', 1)": [1, 1]}), "was not measured alone"),
        (lambda t: t["y"].update({"c": {"null": 1.0}}), r"record y: 'c' is no \('model', GPUs\)"),
        (lambda t: t.update(y=[]), "field 'y': .* is not a mapping"),
        (lambda t: t.pop("x_unconsolidated"), "field 'gpu_types': no table of GPU type 'x'"),
    ],
)
def test_a_malformed_table_names_the_place(files: Path, change: Any, message: str) -> None:
    with refusal(message):
        gavel(altered(files, change))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda files: gavel(files / "none"), "cannot be read"),
        (lambda files: deepshare(files / "none"), "cannot be read"),
        (lambda files: pollux(files / "net"), "has no model"),
        (lambda files: pollux(files, web=10), "'local_batch': no model 'web'"),
        (lambda files: hosts(files, turns=0.75), "turns"),
        (lambda files: hosts(files, table="z"), "no table of GPU type 'z'"),
        (lambda files: hosts(files, core_input="3kg"), "core_input"),
        (lambda files: hosts(files, uplink=49.0), "uplink"),
    ],
)
def test_wrong_settings_are_named(files: Path, build: Built, message: str) -> None:
    with refusal(message):
        build(files)


def test_a_header_without_a_column_is_named(files: Path) -> None:
    (files / SCALED).write_text("nodes\n")
    with refusal("record header: field 'num_nodes': is missing"):
        pollux(files)


@pytest.mark.parametrize(
    ("build", "job", "gpu_types", "message"),
    [
        (gavel, "a", ("A100",), "'gpu_types': 'A100' is not one of V100, K80"),
        (lambda files: gavel(files, 0.5, "x"), "a", ("V100",), "does not run on the reference"),
        (
            lambda files: gavel(altered(files, lambda t: t["y_unconsolidated"].pop(BIG))),
            "a",
            ("V100",),
            r"record y_unconsolidated: \('a', 2\) was not measured",
        ),
        (deepshare, "m", ("V100", "P100"), "measured on one GPU type"),
        (pollux, "net", ("V100", "P100"), "measured on one GPU type"),
    ],
)
def test_jobs_and_gpus_that_were_not_measured_are_named(
    files: Path, build: Built, job: str, gpu_types: tuple[str, ...], message: str
) -> None:
    cluster = Cluster.uniform(2, 2, gpu_types=gpu_types)
    with refusal(message):
        build(files).tables(named_trace([job], [2]), cluster)
