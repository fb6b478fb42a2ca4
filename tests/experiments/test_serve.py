"""The HTTP service: what it answers, what it refuses, what it counts."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from agents.decision import Decision, StateError
from agents.exported import load_decider
from envs.errors import InputError
from experiments.serving.server import listening
from experiments.serving.service import Service
from experiments.serving.settings import ServeConfig, is_loopback, read_token, require_hosts
from tests.paths import ROOT
from tests.refusal import refusal

TOKEN = "0123456789abcdef"
JSON = {"Content-Type": "application/json"}
DECIDE = "/v1/decide"


class Slow:
    """Decides when it may; nothing but an object with `fault` is a wrong state."""

    kind = "cluster"

    def __init__(self) -> None:
        inner = {"inner": {"$ref": "#/$defs/Inner"}}
        self.schema = {"properties": inner, "$defs": {"Inner": {"type": "string"}}}
        self.answer_schema = {"type": "object"}
        self.example = {"inner": "</textarea><b>"}
        self.may, self.asked = threading.Event(), threading.Semaphore(0)
        self.may.set()

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


@pytest.fixture
def decider() -> Iterator[Slow]:
    slow = Slow()
    yield slow
    slow.may.set()


def service_of(decider: Any, token: str | None = None, **config: Any) -> Service:
    limits: Any = {"max_body_bytes": 1000, "concurrency": 2, "timeout_s": 600.0, "limits": None}
    given = ServeConfig(**{**limits, "seed": 0, "json": False, **config})
    return Service(decider, given, token, "0")


def client(decider: Slow, token: str | None = None, **config: Any) -> TestClient:
    app = service_of(decider, token, **config).app
    return TestClient(app, raise_server_exceptions=False, headers=JSON)


TOO_LARGE = {"detail": "the body has more than 1000 bytes"}


@pytest.mark.parametrize(
    ("content", "status", "answer"),
    [
        ([b'{"a": 1}'], 200, {"echo": {"a": 1}}),
        ([b'{"fault": 1}'], 422,
         {"detail": [{"loc": ["body", "jobs", 3, "id"], "msg": "is wrong"}]}),
        ([b'{"foreign": 1}'], 422, {"detail": [{"loc": ["body"], "msg": "was made for others"}]}),
        ([b'{"bug": 1}'], 500, None),
        ([b"x" * 1001], 413, TOO_LARGE),
        ([b"x" * 100] * 30, 413, TOO_LARGE),  # does not tell its length
    ],
)  # fmt: skip
def test_a_request_is_answered_and_counted_and_disturbs_no_other(
    decider: Slow, content: list[bytes], status: int, answer: object
) -> None:
    with client(decider) as http:
        body: Any = content[0] if len(content) == 1 else iter(content)
        found = http.post(DECIDE, content=body)
        assert found.status_code == status
        assert answer is None or found.json() == answer
        assert decider.asked.acquire(blocking=False) == (status != 413)
        assert http.post(DECIDE, content=b"{}").status_code == 200
        assert http.get("/no/such").status_code == 404
        counts = http.get("/metrics").text.splitlines()
    requests = {"other": {404: 1}, DECIDE: {200: 2} if status == 200 else {200: 1, status: 1}}
    for path, numbers in requests.items():
        for code, number in numbers.items():
            line = f'meshwright_requests_total{{path="{path}",status="{code}"}} {number}.0'
            assert line in counts
    assert f'meshwright_request_seconds_count{{path="{DECIDE}"}} 2.0' in counts
    decided = requests[DECIDE][200]
    assert f'meshwright_actions_total{{action="start"}} {decided}.0' in counts
    assert f"meshwright_decision_seconds_count {decided}.0" in counts


def test_a_decision_that_takes_too_long_is_given_up(decider: Slow) -> None:
    decider.may.clear()
    with client(decider, timeout_s=0.05) as http:
        assert http.post(DECIDE, content=b"{}").status_code == 503
        decider.may.set()
        assert http.post(DECIDE, content=b"{}").status_code == 200


def test_all_but_health_needs_the_token(decider: Slow) -> None:
    with client(decider, TOKEN) as http:
        assert http.get("/healthz").status_code == 200
        assert http.get("/metrics").status_code == 401
        for bearer in ("", TOKEN, "Bearer no", f"Bearer {TOKEN}x"):
            http.headers["Authorization"] = bearer
            paths = ("/metrics", "/openapi.json", "/v1/schema", "/v1/example", "/nowhere")
            for refused in (http.post(DECIDE, content=b"{}"), *map(http.get, paths)):
                assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        for scheme in ("Bearer", "bearer"):
            http.headers["Authorization"] = f"{scheme} {TOKEN}"
            assert http.post(DECIDE, content=b"{}").status_code == 200


def test_openapi_describes_the_bodies_and_nothing_loads_from_elsewhere(decider: Slow) -> None:
    with client(decider) as http:
        document = http.get("/openapi.json").json()
        assert http.get("/docs").status_code == 404
        schemas = {"state": decider.schema, "decision": decider.answer_schema}
        constants = {"/healthz": {"status": "ok"}, "/v1/schema": schemas,
                     "/v1/example": decider.example}  # fmt: skip
        assert {path: http.get(path).json() for path in constants} == constants
    asked = document["paths"][DECIDE]["post"]
    parts = document["components"]["schemas"]
    body = asked["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/State"}
    assert parts["State"]["properties"]["inner"] == {"$ref": "#/components/schemas/Inner"}
    assert parts["Inner"] == {"type": "string"}
    assert {"200", "401", "403", "408", "413", "415", "421", "422", "503"} <= {*asked["responses"]}


@pytest.mark.parametrize("token", [None, TOKEN])
def test_the_page_has_an_example_a_form_and_a_line_for_a_shell(
    decider: Slow, token: str | None
) -> None:
    with client(decider, token, checkpoint="t<itle") as http:
        answer = http.get("/")
    assert answer.status_code == 200
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    text = re.sub("<!--.*?-->", "", answer.text)  # comments
    (example,) = re.findall("<textarea.*?>(.*?)</textarea>", text)
    assert json.loads(unescape(example)) == decider.example
    assert "<h1>Meshwright: t&lt;itle</h1>" in text
    assert all(f"<{tag}" in text for tag in ("form", "button", "script"))
    assert ("<input" in text) == (token is not None)
    bearer = "" if token is None else " -H 'Authorization: Bearer <token>'"
    curl = f"curl -s{bearer} http://testserver/v1/decide -H 'Content-Type: application/json'"
    assert curl in unescape(text)
    links = re.findall('(?:href|src|action)="(.*?)"', text)
    assert ("v1/schema" in links) == (token is None)  # a link bears no token
    assert "healthz" in links
    assert not any("//" in link for link in links)


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
    with client(decider, hosts=["Proxy.example"]) as http:
        answer = http.post(DECIDE, content=b"{}", headers=headers)
        assert answer.status_code == status
        preflight = http.options(DECIDE, headers={"Origin": "http://testserver"})
    assert decider.asked.acquire(blocking=False) == (status == 200)
    assert "access-control-allow-origin" not in answer.headers | preflight.headers


def test_hosts_are_names_without_a_port() -> None:
    require_hosts(["Proxy.example", "10.0.0.1", "::1", "fe80::1:2"])
    for wrong in ("http://proxy", "proxy:8000", "cafe:80", "", "*.example", "a b"):
        with refusal("hosts"):
            require_hosts([wrong])


def test_a_token_is_needed_beyond_this_machine(tmp_path: Path) -> None:
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost")] == [True] * 3
    assert read_token(None, "127.0.0.1") is None
    for host in ("0.0.0.0", "::", "10.0.0.1", "example.org", ""):
        with refusal(r"token_file.*can be reached from outside"):
            read_token(None, host)
    file = tmp_path / "token"
    for text in ("short", "", "with a space in the snapshot", "ü" * 20):
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
    block = page.split("```json\n")[1].split("```")[0]
    decider = load_decider("unknown_durations")
    assert json.loads(block) == decider.example
    ((start,)) = decider.decide_json(block.encode()).actions
    assert (start["action"], start["job"], start["on"]) == ("start", "b", {"n1": 2})
