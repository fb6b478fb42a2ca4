"""The contracts of kube-scheduler's extender and of Volcano's."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import yaml
from fastapi.testclient import TestClient
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agents.cluster.live import ClusterDecider
from agents.decision import StateError
from agents.exported import load_decider
from experiments.serving import kubernetes
from experiments.serving.gangs import SPLIT, GangDecisions, fitted
from experiments.serving.kubernetes import Extender, KnownPods
from experiments.serving.objects import ArgumentReader, ExtenderArgs, read
from experiments.serving.settings import ServeConfig
from experiments.serving.volcano import VolcanoExtender
from tests.experiments.kubernetes_objects import (
    GPU,
    Object,
    asking,
    job,
    node,
    node_info,
    pod,
    session,
    snapshot,
    task,
)
from tests.experiments.test_serve import JSON, TOKEN, service_of
from tests.paths import ROOT

NODES = [node("a"), node("b"), node("c", 4, "T4"), node("d", 0)]
EXAMPLES = ROOT / "examples" / "kubernetes"


@pytest.fixture(scope="module")
def decider() -> ClusterDecider:
    found = load_decider("unknown_durations")
    assert isinstance(found, ClusterDecider)
    return found


@pytest.fixture
def extender(decider: ClusterDecider) -> Extender:
    return Extender(GangDecisions(decider))


@pytest.fixture
def http(decider: ClusterDecider) -> Iterator[TestClient]:
    app = service_of(decider, max_body_bytes=100_000).app
    with TestClient(app, raise_server_exceptions=False, headers=JSON) as client:
        yield client


def passes(extender: Extender, of: Object, nodes: list[Object], *, whole: bool = True) -> list[str]:
    """Names of the nodes that pass; of the others it is said why they do not."""
    found = extender.filter(json.dumps(asking(of, nodes, whole=whole)).encode())
    names = [one["metadata"]["name"] for one in nodes]
    if whole:
        assert all(one in nodes for one in found["Nodes"]["items"])
        passed = [one["metadata"]["name"] for one in found["Nodes"]["items"]]
    else:
        passed = found["NodeNames"]
    assert {*passed} | found["FailedAndUnresolvableNodes"].keys() == {*names}
    assert len(passed) + len(found["FailedAndUnresolvableNodes"]) == len(names)
    assert all(found["FailedAndUnresolvableNodes"].values())
    return passed


def test_a_gang_passes_when_all_of_it_is_known_each_pod_on_the_node_of_the_decision(
    http: TestClient,
) -> None:
    def asked(verb: str, body: Object) -> Any:
        answer = http.post(f"/kubernetes/{verb}", json=body)
        assert answer.status_code == 200
        return answer.json()

    first, last = pod("w0", 8, "train", 2), pod("w1", 8, "train", 2)
    waits = "1 of the 2 members of its gang have been asked about"
    assert asked("filter", asking(first, NODES[:2])) == {
        "Nodes": {"metadata": {}, "items": []}, "NodeNames": None, "FailedNodes": {},
        "FailedAndUnresolvableNodes": {"a": waits, "b": waits}, "Error": "",
    }  # fmt: skip
    # Now the nodes are known: names will do, in any case of the keys.
    names = asking(last, NODES[:2], whole=False)
    found = asked("filter", {key.lower(): value for key, value in names.items()})
    (its,) = found["NodeNames"]
    (other,) = {"a", "b"} - {its}
    assert found == {
        "Nodes": None, "NodeNames": [its], "FailedNodes": {},
        "FailedAndUnresolvableNodes": {other: f"its node is {its}"}, "Error": "",
    }  # fmt: skip
    assert asked("prioritize", names) == [
        {"Host": name, "Score": 10 * (name == its)} for name in "ab"
    ]
    found = asked("filter", asking(first, [node(other)]))
    assert found["Nodes"] == {"metadata": {}, "items": [node(other)]}
    assert asked("filter", asking(pod("more"), NODES[:2]))["Nodes"]["items"] == []
    assert asked("filter", asking(pod("web", 0), NODES))["Nodes"]["items"] == NODES


def test_a_snapshot_says_what_runs_and_what_has_ended(
    extender: Extender, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken(*pods: Object) -> object:
        return extender.snapshot(json.dumps(snapshot(NODES, *pods)).encode())

    def asked(name: str, gpus: int, **more: Any) -> list[str]:
        return passes(extender, pod(name, gpus, **more), NODES, whole=False)

    assert asked("p", 5) == []  # no node is known
    runs = pod("r", 8, nodeName="a")
    assert taken(runs, pod("q", 8)) == {"nodes": 4, "pods": 2, "finished": 0}
    assert asked("p", 5) == ["b"]
    assert asked("s", 6) == []
    assert asked("t", 3, nodeSelector={"nvidia.com/gpu.product": "T4"}) == ["c"]
    runs["status"] = {
        "phase": "Succeeded", "startTime": "2026-01-02T04:00:00Z",
        "containerStatuses": [{"state": {"terminated": {"finishedAt": "2026-01-02T05:00:00Z"}}}],
    }  # fmt: skip
    waits = [pod("p", 5), pod("s", 6)]
    assert taken(runs, *waits) == {"nodes": 4, "pods": 3, "finished": 1}  # t is later than this
    assert [one["held_s"] for one in extender._finished] == [3600]
    assert asked("p", 5) == ["b"]
    assert asked("s", 6) == ["a"]
    monkeypatch.setattr(kubernetes, "LATE_S", 0.0)
    assert taken(*waits) == {"nodes": 4, "pods": 2, "finished": 0}
    assert asked("v", 8) == []
    monkeypatch.setattr(kubernetes, "FORGET_S", 0.0)
    assert asked("u", 4) == ["c"]
    assert [*extender._pods.by_id] == ["uid-p", "uid-s", "uid-u"]


def test_a_gang_that_says_no_size_waits_and_one_whose_node_is_lost_moves_on(
    extender: Extender,
) -> None:
    for place in range(2):
        assert passes(extender, pod(f"n{place}", 1, "nameless", 0), NODES) == []
    members = [pod(f"m{place}", 8, "g", 2) for place in range(2)]
    assert passes(extender, members[0], NODES[:2]) == []
    (first,) = passes(extender, members[1], NODES[:2])
    rest = [one for one in NODES[:2] if one["metadata"]["name"] != first]
    assert passes(extender, members[0], [node("e")]) == ["e"]
    assert passes(extender, members[0], [node("e"), *rest]) == ["e"]


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[int], list[list[int]], list[int]]:
    """GPUs of nodes; GPUs of every pod of gangs; the order in which pods are asked about."""
    nodes = draw(st.lists(st.sampled_from([0, 2, 4, 8]), min_size=1, max_size=5))
    sizes = st.lists(st.sampled_from([0, 1, 2, 3, 4, 8]), min_size=1, max_size=4)
    gangs = draw(st.lists(sizes, min_size=1, max_size=5))
    return nodes, gangs, draw(st.permutations(range(sum(map(len, gangs)))))


@settings(max_examples=40, deadline=None)
@given(given=clusters(), whole=st.booleans(), checked=st.booleans())
def test_all_of_a_gang_passes_on_nodes_that_hold_it_or_none(
    decider: ClusterDecider, given: Any, whole: bool, checked: bool
) -> None:
    """Whether kube-scheduler has checked what is free or not."""
    gpus, gangs, order = given
    extender = Extender(GangDecisions(decider))
    nodes = {f"n{place}": node(f"n{place}", number) for place, number in enumerate(gpus)}
    free = dict(zip(nodes, gpus, strict=True))
    extender.snapshot(json.dumps(snapshot([*nodes.values()])).encode())
    pods = [
        (f"g{gang}", size, pod(f"g{gang}-{place}", size, f"g{gang}", len(sizes)))
        for gang, sizes in enumerate(gangs)
        for place, size in enumerate(sizes)
    ]
    on: dict[int, str] = {}
    for place in [*order] * 2:
        if place in on:
            continue
        _, size, asked = pods[place]
        fits = [nodes[name] for name in nodes if free[name] >= size or not checked]
        found = passes(extender, asked, fits, whole=whole)
        if size == 0:
            assert found == [*nodes]
        elif found:
            (on[place],) = found
            free[on[place]] -= size
    assert min(free.values()) >= 0
    known, anew = extender._pods, KnownPods(extender._pods.by_id)
    assert known.held == anew.held
    assert {gang: one.job for gang, one in known.gangs.items()} == {
        gang: one.job for gang, one in anew.gangs.items()
    }
    for gang, sizes in enumerate(gangs):
        started = sum(pods[place][0] == f"g{gang}" for place in on)
        assert started in (0, sum(size > 0 for size in sizes))


@settings(max_examples=40, deadline=None)
@given(
    free=st.lists(st.integers(0, 4), min_size=1, max_size=4),
    gangs=st.lists(st.tuples(st.integers(1, 20), st.sampled_from(["", "V100", "T4"])), min_size=1),
)
def test_who_asks_for_more_than_is_free_waits_as_the_whole_decision_says(
    decider: ClusterDecider, free: list[int], gangs: list[tuple[int, str]]
) -> None:
    nodes: list[Object] = [
        {"id": f"n{place}", "gpu_type": "V100", "num_gpus": 4, "free_gpus": number}
        for place, number in enumerate(free)
    ]
    jobs: list[Object] = [
        {"submit_s": float(place), "num_gpus": gpus, **({"gpu_types": [kind]} if kind else {})}
        for place, (gpus, kind) in enumerate(gangs)
    ]
    decisions = GangDecisions(decider)
    for place, (gpus, _) in enumerate(gangs):
        why = decisions.beyond_free(nodes, jobs[place])
        assert (why is None) == (gpus <= sum(free))
        assert why in (None, decisions.place(nodes, jobs, place, {"p": gpus}))


@settings(max_examples=40, deadline=None)
@given(
    idle=st.lists(st.integers(0, 8), min_size=1, max_size=4),
    gangs=st.lists(st.lists(st.integers(0, 8), min_size=1, max_size=4), min_size=1, max_size=5),
    runs=st.lists(st.integers(1, 8), max_size=4),
)
def test_a_session_of_volcano_starts_whole_jobs_within_what_is_idle_or_stopped(
    decider: ClusterDecider, idle: list[int], gangs: list[list[int]], runs: list[int]
) -> None:
    volcano = VolcanoExtender(GangDecisions(decider))

    def asked(verb: str, **body: Any) -> Any:
        return volcano.routes[f"/volcano/{verb}"](json.dumps(body).encode())

    left = Counter({f"n{place}": number for place, number in enumerate(idle)})
    running = [
        job(f"r{place}", task(f"r{place}-0", f"r{place}", gpus, f"n{place}"))
        for place, gpus in enumerate(runs[: len(idle)])
    ]
    waiting = [
        job(f"g{gang}", *(task(f"g{gang}-{i}", f"g{gang}", size) for i, size in enumerate(sizes)))
        for gang, sizes in enumerate(gangs)
    ]
    held = Counter({f"n{place}": gpus for place, gpus in enumerate(runs[: len(idle)])})
    nodes = [node_info(name, number + held[name], number) for name, number in left.items()]
    assert asked("onSessionOpen", **session([*running, *waiting], nodes)) == {}
    evictees = [one for of in running for one in of["Tasks"].values()]
    for of in waiting:
        tasks = [one for one in of["Tasks"].values() if one["Resreq"]["ScalarResources"][GPU]]
        went = []
        for one in of["Tasks"].values():
            verdicts = {n["Name"]: asked("predicate", task=one, node=n) for n in nodes}
            on = [name for name, verdict in verdicts.items() if not verdict["status"]]
            scores = asked("prioritize", task=one, nodes=nodes)["nodeScore"]
            votes = asked("preemptable", evictor=one, evictees=evictees)
            if one not in tasks:
                assert on == [n["Name"] for n in nodes]
                assert votes == {"status": 0, "victims": []}
            elif on:
                (name,) = on
                assert scores == {n["Name"]: 100.0 * (n["Name"] == name) for n in nodes}
                went.append(one)
                left[name] -= one["Resreq"]["ScalarResources"][GPU] // 1000
                assert (votes["status"] > 0) == bool(votes["victims"])
                stopped = votes["victims"]
            else:
                assert {verdict["code"] for verdict in verdicts.values()} == {3}
                assert votes["victims"] == []
        assert went in ([], tasks)
        vote = asked("jobEnqueueable", job=of)["status"]
        assert vote == (0 if not tasks else 1 if went else -1)
        for victim in stopped if went else []:
            left[victim["NodeName"]] += victim["Resreq"]["ScalarResources"][GPU] // 1000
            evictees = [one for one in evictees if one != victim]
    assert min(left.values()) >= 0


def test_volcano_is_answered_as_its_types_say(http: TestClient) -> None:
    def asked(verb: str, **body: Any) -> Any:
        answer = http.post(f"/volcano/{verb}", json=body)
        assert answer.status_code == 200
        return answer.json()

    tasks = [task(f"t{place}", "team/train", 8) for place in range(2)]
    train, later = job("team/train", *tasks), job("team/later", gpus=24)
    small, web = job("team/small", task("s", "team/small")), job("team/web", task("w", "web", 0))
    nodes = [node_info("a"), node_info("b"), node_info("c", 0, 0)]
    ask = {"task": tasks[0], "node": nodes[0]}
    refused = {"status": "no session is open", "errorMessage": "no session is open", "code": 3}
    assert asked("predicate", **ask) == refused
    assert asked("onSessionOpen", **session([train, later, web], nodes)) == {}
    passed = {"status": "", "errorMessage": "", "code": 0}
    on = {
        one["UID"]: [n["Name"] for n in nodes if asked("predicate", task=one, node=n) == passed]
        for one in tasks
    }
    assert sorted(on.values()) == [["a"], ["b"]]
    assert asked("predicate", task=web["Tasks"]["uid-w"], node=nodes[2]) == passed
    scores = asked("prioritize", task=tasks[0], nodes=nodes)
    assert scores["nodeScore"] == {n["Name"]: 100.0 * ([n["Name"]] == on["uid-t0"]) for n in nodes}
    votes = [asked("jobEnqueueable", job=one)["status"] for one in (train, later, web, small)]
    assert votes == [1, -1, 0, 0]
    train["MinAvailable"], later = 3, job("team/later", gpus=8)
    asked("onSessionOpen", **session([train, later], nodes))
    votes = [asked("jobEnqueueable", job=one)["status"] for one in (train, later)]
    assert votes == [-1, 1]
    assert asked("onSessionClose") == {}
    assert asked("predicate", **ask) == refused
    assert http.post("/volcano/jobReady", json={}).status_code == 404


def test_a_short_job_stops_a_long_one_and_its_task_is_the_victim(decider: ClusterDecider) -> None:
    volcano = VolcanoExtender(GangDecisions(decider))
    runs = task("old", "old", 8, "a")
    runs["Pod"]["status"]["startTime"] = "2026-01-02T03:04:05Z"
    new = task("new", "new")
    opened = session([job("old", runs), job("new", new)], [node_info("a", 8, 0)])
    volcano.open(json.dumps(opened).encode())
    evictees = [{**runs, "Extra": "kept"}, task("other", "other", 1, "a")]
    asked = json.dumps({"evictor": new, "evictees": evictees}).encode()
    assert volcano.preemptable(asked) == {"status": 1, "victims": evictees[:1]}


def test_two_jobs_of_a_session_do_not_get_the_same_gpus(decider: ClusterDecider) -> None:
    """Each is decided anew in whole tasks, for which both would take the last node."""
    volcano = VolcanoExtender(GangDecisions(decider))
    jobs = [job(uid, *(task(f"{uid}{place}", uid, 2) for place in range(3))) for uid in "xy"]
    nodes = [node_info(name, 4, 2 if name == "e" else 3) for name in "abcde"]
    volcano.open(json.dumps(session(jobs, nodes)).encode())
    votes = [volcano.enqueueable(json.dumps({"job": one}).encode())["status"] for one in jobs]
    assert sorted(votes) == [-1, 1]


VALID: dict[str, Object] = {
    "kubernetes/filter": asking(pod("p", 2, "g", 1), NODES),
    "kubernetes/prioritize": asking(pod("p", 2, "g", 1), NODES, whole=False),
    "kubernetes/snapshot": snapshot(NODES, pod("p", 2, nodeName="a")),
    "volcano/onSessionOpen": session([job("j", task("t", "j"))], [node_info("a")]),
    "volcano/predicate": {"task": task("t", "j"), "node": node_info("a")},
    "volcano/prioritize": {"task": task("t", "j"), "nodes": [node_info("a")]},
    "volcano/preemptable": {"evictor": task("t", "j"), "evictees": [task("r", "i", 1, "a")]},
    "volcano/jobEnqueueable": {"job": job("j", task("t", "j"))},
}


@pytest.mark.parametrize("route", VALID)
def test_a_hostile_body_is_one_clear_422_and_harms_no_other(http: TestClient, route: str) -> None:
    twice = {**asking(pod("p"), [*NODES, NODES[0]])}
    bodies = [b"", b"[]", b"null", b"{", b"{}", b"[" * 50_000, b'{"Pod": NaN}', b"\xff",
              json.dumps(VALID[route]).replace("uid-", "\\u0000").encode()]  # fmt: skip
    if route == "kubernetes/filter":
        bodies += [
            json.dumps(body).encode()
            for body in (
                twice, asking(pod("p"), [node("")]), asking(pod("p", -1), NODES), {"Pod": pod("p")},
                asking(pod("p"), [node("a", kind="\n")]),
                {"Pod": {"metadata": {}}, "NodeNames": []},
                {"Pod": pod("p"), "NodeNames": ["a", "a"]}, {"Pod": pod("p"), "NodeNames": "a"},
            )
        ]  # fmt: skip
    for body in bodies:
        answer = http.post(f"/{route}", content=body)
        assert answer.status_code == 422, (body[:80], answer.text)
        assert all({"loc", "msg"} <= fault.keys() for fault in answer.json()["detail"])
    assert http.post(f"/{route}", content=b" " * 100_001).status_code == 413
    assert http.post(f"/{route}", json=VALID[route]).status_code == 200


def paths(value: object, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield here
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from paths(value[key], (*here, key))


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_whatever_stands_in_a_body_is_answered_or_refused(
    decider: ClusterDecider, data: Any
) -> None:
    route = data.draw(st.sampled_from([*VALID]))
    body = json.loads(json.dumps(VALID[route]))
    junk = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=300),
                     st.just({}), st.just([]), st.just("2026-01-02"), st.just(1e999))  # fmt: skip
    for _ in range(data.draw(st.integers(1, 3))):
        *way, last = data.draw(st.sampled_from([path for path in paths(body) if path]))
        at = body
        for key in way:
            at = at[key]
        at[last] = data.draw(junk)
    decisions = GangDecisions(decider)
    routes = Extender(decisions).routes | VolcanoExtender(decisions).routes
    with suppress(StateError):
        routes[f"/{route}"](json.dumps(body).encode())
    assert routes[f"/{route}"](json.dumps(VALID[route]).encode()) is not None


TEXTS = st.sampled_from([
    b"", b"{", b"}", b"[", b"]", b",", b'"Nodes":{', b'"items":[', b'"items":[]', b'"nodes":{}',
    b'"Nodes":{"items":[]},', b'"nodes":{"items":[]},', b'{"metadata":{', b'},{"metadata":{',
    b'{"metadata":{"name":"z"}}', b"}]}", b"null", b" ", b'"', b"\\",
])  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    cuts=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 30), TEXTS), max_size=3),
    names=st.lists(st.sampled_from("abc"), max_size=4),
)
@example(cuts=[(1, 0, b'"nodes":{"items":[]},')], names=["a"])  # goes before those that are cut
def test_arguments_read_in_pieces_are_those_read_at_once(cuts: Any, names: list[str]) -> None:
    """However the text is cut, lengthened or made invalid."""
    asked = asking(pod("p", 2, "},{", 1), [node(name) for name in names])
    body, reader = json.dumps(asked, separators=(",", ":")).encode(), ArgumentReader()
    _, texts = reader.read(body)
    assert [json.loads(text) for text in texts] == asked["Nodes"]["items"]
    for at, number, text in cuts:
        body = body[:at] + text + body[at + number :]
    found = _or_faults(lambda: reader.read(body))
    expected = _or_faults(lambda: (read(ExtenderArgs, body), []))
    assert found[0] == expected[0]
    if found[1]:
        assert [json.loads(text) for text in found[1]] == json.loads(body)["Nodes"]["items"]


def _or_faults(reading: Callable[[], tuple[ExtenderArgs, list[bytes]]]) -> tuple[Any, list[bytes]]:
    try:
        args, texts = reading()
    except StateError as error:
        return error.faults, []
    return args.model_dump(), texts


def test_other_schedulers_need_the_token_too(decider: ClusterDecider) -> None:
    with TestClient(service_of(decider, TOKEN).app, headers=JSON) as client:
        for route, body in VALID.items():
            assert client.post(f"/{route}", json=body).status_code == 401
        client.headers["Authorization"] = f"Bearer {TOKEN}"
        assert client.post("/kubernetes/filter", json=asking(pod("p"), [])).status_code == 200


@pytest.mark.parametrize(
    ("gpus", "shares", "found"),
    [
        ({"p": 4, "q": 4}, {"a": 8}, {"p": "a", "q": "a"}),
        ({"p": 2, "q": 6}, {"a": 2, "b": 6}, {"q": "b", "p": "a"}),
        ({"p": 8}, {"a": 4, "b": 4}, None),
    ],
)
def test_pods_fit_in_shares(gpus: Any, shares: Any, found: Any) -> None:
    assert fitted(gpus, shares) == found


def test_where_a_decision_cuts_through_pods_the_gang_is_decided_in_whole_pods(
    decider: ClusterDecider,
) -> None:
    free = {"a": 3, "b": 2, "c": 3}
    nodes = [
        {"id": name, "gpu_type": "V100", "num_gpus": 4, "free_gpus": left}
        for name, left in free.items()
    ]
    decisions = GangDecisions(decider)
    jobs = [{"submit_s": 0.0, "num_gpus": 6}]
    ((start,)) = decisions.decide(nodes, jobs)["actions"]
    assert fitted({"p": 2, "q": 2, "r": 2}, start["on"]) is None
    found = decisions.place(nodes, jobs, 0, {"p": 2, "q": 2, "r": 2})
    assert isinstance(found, dict)
    assert sorted(found.values()) == ["a", "b", "c"]
    assert decisions.place(nodes, jobs, 0, {"p": 4, "q": 2}) == SPLIT


def test_the_manifests_name_what_there_is(decider: ClusterDecider) -> None:
    paths = {getattr(route, "path", "") for route in service_of(decider).app.routes}
    parts = [*yaml.safe_load_all((EXAMPLES / "kube_scheduler.yaml").read_text())]
    (deployment,) = (part for part in parts if part["kind"] == "Deployment")
    (configured,) = (part for part in parts if part["kind"] == "ConfigMap")
    (extender,) = yaml.safe_load(configured["data"]["scheduler.yaml"])["extenders"]
    containers = {
        one["name"]: one["command"] for one in deployment["spec"]["template"]["spec"]["containers"]
    }
    given = dict(word.split("=") for word in containers["meshwright"][2:])
    config = ServeConfig(**{**given, "limits": None, "seed": 0, "json": False})  # type: ignore[arg-type]
    here = f"http://{config.host}:{config.port}"
    shown = containers["snapshots"][-1].split(here)[1].split()[0]
    (volcano,) = yaml.safe_load_all((EXAMPLES / "volcano.yaml").read_text())
    tiers = yaml.safe_load(volcano["data"]["volcano-scheduler.conf"])["tiers"]
    (called,) = (one for one in tiers[0]["plugins"] if one["name"] == "extender")
    at = called["arguments"]["extender.urlPrefix"]
    verbs = {f"{at}/{verb}" for key, verb in called["arguments"].items() if key.endswith("Verb")}
    verbs |= {
        f"{extender['urlPrefix']}/{extender[key]}" for key in ("filterVerb", "prioritizeVerb")
    }
    posted = {path for path in paths if path.startswith(("/kubernetes/", "/volcano/"))}
    assert verbs | {here + shown} == {here + path for path in posted}
