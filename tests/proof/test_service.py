"""The service of decisions under everything its OpenAPI document allows, and what it does not."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from agents.exported import load_decider
from tests.benchmarks.serve_load import MALFORMED, closed_loop, load, states
from tests.experiments.test_serve import service_of

pytestmark = [pytest.mark.proof, pytest.mark.timeout(1200)]

CASES = 300  # of each operation
RATE, SECONDS = 10.0, 30.0  # a machine that does other things as well keeps up with that
GROWTH = 24.0  # MiB


@pytest.mark.parametrize("valid", [True, False])
def test_whatever_comes_is_answered_and_never_with_500(valid: bool) -> None:
    import schemathesis
    from schemathesis import checks

    decider = load_decider("unknown_durations", most_nodes=64, most_jobs=500, most_actions=16)
    service = service_of(decider, max_body_bytes=1_000_000, concurrency=8, timeout_s=30.0)
    schema = schemathesis.openapi.from_asgi("/openapi.json", service.app)
    modes = schemathesis.GenerationMode
    mode = modes.POSITIVE if valid else modes.NEGATIVE
    named = ("status_code", "content_type", "response_schema")
    found = checks.CHECKS.get_by_names([f"{name}_conformance" for name in named])
    found.append(checks.not_a_server_error)
    asked = 0
    for operation in (one.ok() for one in schema.get_all_operations()):
        if not valid and operation.method.upper() == "GET":
            continue  # takes nothing that could be wrong

        @settings(max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy(generation_mode=mode))
        def answers(case: schemathesis.Case) -> None:
            case.call_and_validate(checks=found)

        answers()
        asked += 1
    assert asked == (4 if valid else 1)


@pytest.fixture(scope="module")
def bodies() -> list[bytes]:
    return states(5)


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """A service in a process of its own; SIGTERM ends it with exit code 0, and soon."""
    arguments = ["port=0", f"hydra.run.dir={tmp_path / 'run'}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "experiments.serve", *arguments],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    assert process.stdout is not None
    address = next(line for line in process.stdout if line.startswith("listening at")).split()[-1]
    yield address
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0


def test_nonsense_among_good_requests_disturbs_nothing(url: str, bodies: list[bytes]) -> None:
    message = {"Content-Type": "application/json"}
    asking = urllib.request.Request(f"{url}/v1/decide", bodies[0], message)
    with urllib.request.urlopen(asking) as answer:
        expected = json.load(answer)
    found = asyncio.run(load(url, bodies, RATE, SECONDS, malformed=100))
    assert found["statuses"] == {200: int(RATE * SECONDS) - 100}
    assert found["malformed_statuses"] == {422: 100}
    memory = found["resident_mib"]
    assert isinstance(memory, list)
    assert memory[-1] - memory[1] < GROWTH
    with urllib.request.urlopen(asking) as answer:
        assert json.load(answer) == expected
    assert len(MALFORMED) >= 10


def test_none_of_64_clients_is_refused(url: str, bodies: list[bytes]) -> None:
    found = asyncio.run(closed_loop(url, bodies, clients=64, seconds=15.0))
    statuses = found["statuses"]
    assert isinstance(statuses, dict)
    assert set(statuses) == {200}
