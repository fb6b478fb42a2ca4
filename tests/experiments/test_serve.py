"""The HTTP service: what it answers, what it refuses, what it counts."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from agents.decision import Decider, Decision, StateError
from agents.exported import load_decider
from envs.errors import InputError
from experiments.serving.server import is_loopback, listening, read_hosts, read_token
from experiments.serving.service import Limits, Service
from tests.paths import ROOT
from tests.refusal import refusal

TOKEN = "0123456789abcdef"
LIMITS = Limits(max_body_bytes=1000, concurrency=2, timeout_s=600.0)
JSON = {"Content-Type": "application/json"}


class Slow:
    """Decides when it may; nothing but an object with `fault` is a wrong state."""

    kind = "cluster"

    def __init__(self) -> None:
        self.may, self.asked = threading.Event(), threading.Semaphore(0)
        self.may.set()
        inner = {"inner": {"$ref": "#/$defs/Inner"}}
        self.schema = {
            "type": "object",
            "properties": inner,
            "$defs": {"Inner": {"type": "string"}},
        }
        self.answer_schema = {"type": "object"}
        self.example = {"inner": "</textarea><b>"}

    def decide(self, state: Mapping[str, Any]) -> Decision:
        return self.decide_json(json.dumps(dict(state)).encode())

    def decide_json(self, text: bytes) -> Decision:
        self.asked.release()
        assert self.may.wait(600)
        state = json.loads(text)
        if "fault" in state:
            raise StateError((("jobs", 3, "id"), "is wrong"))
        if "foreign" in state:
            raise InputError("was made for others")
        if "bug" in state:
            raise ZeroDivisionError
        return Decision([{"action": "start"}], {"echo": state})

    def warm(self) -> None:
        """It is."""


@pytest.fixture
def decider() -> Iterator[Slow]:
    slow = Slow()
    yield slow
    slow.may.set()


def client(decider: Decider, limits: Limits = LIMITS) -> TestClient:
    service = Service(decider, limits, "t<itle", "0")
    return TestClient(service.app, raise_server_exceptions=False, headers=JSON)


def test_a_state_in_a_decision_out(decider: Slow) -> None:
    with client(decider) as http:
        answer = http.post("/v1/decide", content=b'{"a": 1}')
        assert (answer.status_code, answer.json()) == (200, {"echo": {"a": 1}})
        assert http.get("/healthz").json() == {"status": "ok"}
        schemas = http.get("/v1/schema").json()
        assert schemas == {"state": decider.schema, "decision": decider.answer_schema}


def test_what_is_wrong_is_told_with_its_place(decider: Slow) -> None:
    with client(decider) as http:
        answer = http.post("/v1/decide", content=b'{"fault": 1}')
        assert answer.status_code == 422
        assert answer.json() == {"detail": [{"loc": ["body", "jobs", 3, "id"], "msg": "is wrong"}]}
        foreign = http.post("/v1/decide", content=b'{"foreign": 1}')
        assert foreign.status_code == 422
        assert foreign.json()["detail"] == [{"loc": ["body"], "msg": "was made for others"}]


def test_a_fault_of_ours_ends_one_request(decider: Slow) -> None:
    with client(decider) as http:
        assert http.post("/v1/decide", content=b'{"bug": 1}').status_code == 500
        assert http.post("/v1/decide", content=b"{}").status_code == 200
        found = http.get("/metrics").text
    assert 'meshwright_requests_total{path="/v1/decide",status="500"} 1.0' in found


def test_large_bodies_are_refused_whether_they_tell_their_length_or_not(decider: Slow) -> None:
    def parts() -> Iterator[bytes]:
        for _ in range(30):
            yield b"x" * 100

    with client(decider) as http:
        assert http.post("/v1/decide", content=b"x" * 1001).status_code == 413
        assert http.post("/v1/decide", content=parts()).status_code == 413
        assert http.post("/v1/decide", content=b"{}").status_code == 200
    assert decider.asked.acquire(blocking=False)
    assert not decider.asked.acquire(blocking=False)


def test_above_the_bound_clients_are_to_come_again(decider: Slow) -> None:
    decider.may.clear()
    with client(decider) as http, ThreadPoolExecutor(3) as threads:
        waiting = [threads.submit(http.post, "/v1/decide", content=b"{}") for _ in range(2)]
        while "meshwright_waiting_requests 2.0" not in http.get("/metrics").text:
            pass
        refused = http.post("/v1/decide", content=b"{}")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        decider.may.set()
        assert [request.result().status_code for request in waiting] == [200, 200]
        assert http.post("/v1/decide", content=b"{}").status_code == 200


def test_a_decision_that_takes_too_long_is_given_up(decider: Slow) -> None:
    decider.may.clear()
    with client(decider, Limits(1000, 2, 0.05)) as http:
        assert http.post("/v1/decide", content=b"{}").status_code == 503
        decider.may.set()
        assert http.post("/v1/decide", content=b"{}").status_code == 200


def test_all_but_health_needs_the_token(decider: Slow) -> None:
    with client(decider, Limits(1000, 2, 5.0, TOKEN)) as http:
        assert http.get("/healthz").status_code == 200
        for wrong in ({}, {"Authorization": TOKEN}, {"Authorization": "Bearer no"},
                      {"Authorization": f"Bearer {TOKEN}x"}):  # fmt: skip
            for path in ("/metrics", "/openapi.json", "/v1/schema", "/v1/example", "/nowhere"):
                refused = http.get(path, headers=wrong)
                assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
            assert http.post("/v1/decide", content=b"{}", headers=wrong).status_code == 401
        right = {"Authorization": f"Bearer {TOKEN}"}
        assert http.post("/v1/decide", content=b"{}", headers=right).status_code == 200


def test_requests_are_counted_by_status_and_path(decider: Slow) -> None:
    with client(decider) as http:
        http.post("/v1/decide", content=b"{}")
        http.post("/v1/decide", content=b'{"fault": 1}')
        http.get("/no/such")
        found = http.get("/metrics").text
    assert 'meshwright_requests_total{path="/v1/decide",status="200"} 1.0' in found
    assert 'meshwright_requests_total{path="/v1/decide",status="422"} 1.0' in found
    assert 'meshwright_requests_total{path="other",status="404"} 1.0' in found
    assert 'meshwright_request_seconds_count{path="/v1/decide"} 2.0' in found
    assert 'meshwright_actions_total{action="start"} 1.0' in found


def test_openapi_describes_the_body_and_no_page_loads_from_elsewhere(decider: Slow) -> None:
    with client(decider) as http:
        document = http.get("/openapi.json").json()
        assert http.get("/docs").status_code == 404
    body = document["paths"]["/v1/decide"]["post"]["requestBody"]
    assert body["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/State"}
    parts = document["components"]["schemas"]
    inner = parts["State"]["properties"]["inner"]
    assert inner == {"$ref": "#/components/schemas/Inner"}
    assert parts["Inner"] == {"type": "string"}
    statuses = document["paths"]["/v1/decide"]["post"]["responses"]
    assert {"200", "401", "403", "408", "413", "415", "421", "422", "503"} <= set(statuses)


@pytest.mark.parametrize("token", [None, TOKEN])
def test_the_page_has_an_example_a_form_and_a_line_for_a_shell(
    decider: Slow, token: str | None
) -> None:
    with client(decider, Limits(1000, 2, 5.0, token)) as http:
        answer = http.get("/")
    assert answer.status_code == 200
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    shown = Shown(answer.text)
    assert shown.texts["h1"].strip() == "t<itle"
    assert json.loads(shown.texts["textarea"]) == decider.example
    assert shown.tags >= {"form", "button", "script"}
    assert ("input" in shown.tags) == (token is not None)
    assert "curl -s http://testserver/v1/decide -H 'Content-Type: application/json'" in (
        shown.texts["pre"].replace(" -H 'Authorization: Bearer <token>'", "")
    )
    assert not any("//" in link for link in shown.links)


class Shown(HTMLParser):
    """What stands on a page: its tags, the text in each kind, and what it loads or links to."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.texts: dict[str, str] = defaultdict(str)
        self.links: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self._last = tag
        self.links += [value or "" for name, value in attrs if name in {"href", "src", "action"}]

    def handle_data(self, data: str) -> None:
        self.texts[self._last if self.tags else ""] += data


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": ""}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Type": "Application/JSON; charset=utf-8"}, 200),
        ({"Host": "evil.example"}, 421),
        ({"Host": "localhost.evil.example"}, 421),
        ({"Host": "localhost@evil.example"}, 421),
        ({"Host": ""}, 421),
        ({"Host": "localhost:8000"}, 200),
        ({"Host": "[::1]:8000"}, 200),
        ({"Host": "Proxy.Example"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://testserver:3000"}, 403),
        ({"Origin": "http://testserver"}, 200),
        ({"Host": "proxy.example", "Origin": "https://proxy.example"}, 200),
    ],
)
def test_what_a_page_of_others_makes_a_browser_send_is_refused(
    decider: Slow, headers: dict[str, str], status: int
) -> None:
    limits = replace(LIMITS, hosts=frozenset({"proxy.example"}))
    with client(decider, limits) as http:
        answer = http.post("/v1/decide", content=b"{}", headers=headers)
        assert answer.status_code == status
        preflight = http.options("/v1/decide", headers={"Origin": "http://testserver"})
    assert decider.asked.acquire(blocking=False) == (status == 200)
    assert "access-control-allow-origin" not in answer.headers | preflight.headers


def test_hosts_are_names_without_a_port() -> None:
    assert read_hosts(["Proxy.example", "10.0.0.1"], "::1") == {"proxy.example", "10.0.0.1", "::1"}
    for wrong in ("http://proxy", "proxy:8000", "", "*.example", "a b"):
        with refusal("hosts"):
            read_hosts([wrong], "127.0.0.1")


def test_a_token_is_needed_beyond_this_machine(tmp_path: Path) -> None:
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost")] == [True] * 3
    assert read_token(None, "127.0.0.1") is None
    for host in ("0.0.0.0", "::", "10.0.0.1", "example.org", ""):
        with refusal(r"token_file.*can be reached from outside"):
            read_token(None, host)
    file = tmp_path / "token"
    for text in ("short", "", "with a space in the midst", "ü" * 20):
        file.write_text(text, encoding="utf-8")
        with refusal("token"):
            read_token(str(file), "0.0.0.0")
    file.write_text(f"{TOKEN}\n")
    assert read_token(str(file), "0.0.0.0") == TOKEN
    with refusal("cannot be read"):
        read_token(str(tmp_path / "none"), "127.0.0.1")


def test_an_address_that_is_taken_is_one_line() -> None:
    with listening("127.0.0.1", 0) as taken, refusal("listened at"):
        listening("127.0.0.1", taken.getsockname()[1])


def test_the_state_on_the_page_is_decided_as_it_says() -> None:
    page = (ROOT / "docs" / "serve.md").read_text(encoding="utf-8")
    told = page.split("```json\n")[1].split("```")[0]
    decider = load_decider("unknown_durations")
    assert json.loads(told) == decider.example
    ((start,)) = decider.decide_json(told.encode()).actions
    assert (start["action"], start["job"], start["on"]) == ("start", "b", {"n1": 2})
