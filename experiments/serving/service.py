"""The HTTP service of a decider: what it answers, what it refuses, what it counts.

Decisions are made one after the other in a thread of their own, so that the event loop is never
busy for long. Requests above a limit of number, size or time are refused, and so is what a page of
another site makes a browser send: its `Origin` or `Host` is another, or its body is no JSON.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response, Security
from fastapi.exception_handlers import http_exception_handler
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.security import HTTPBearer
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from pydantic import BaseModel
from pydantic_core import to_json
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agents.decision import Decider, StateError
from envs.errors import InputError
from experiments.serving.settings import ServeConfig
from models.export.checkpoint import CLUSTER

JSON = "application/json"
BUCKETS = (0.002, 0.005, 0.01, 0.015, 0.02, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
WITHOUT_TOKEN = {"/", "/healthz"}
LATER = {"Retry-After": "1"}  # seconds
LOCAL = {"localhost", "127.0.0.1", "::1"}
AUTHORITY = re.compile(r"(?:\[([0-9a-f:.%]+)\]|([^\s/:@\[\]]+))(?::\d*)?")  # a host, and its port
PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Fault(BaseModel):
    """What is wrong where in a body."""

    loc: Sequence[str | int]
    msg: str


class Refusal(BaseModel):
    """Why a request is not answered."""

    detail: str | Sequence[Fault]


def _content(name: str) -> dict[str, Any]:
    return {"content": {JSON: {"schema": {"$ref": f"#/components/schemas/{name}"}}}}


REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": Refusal, "description": text}
    for status, text in {
        401: "The token is missing or wrong.",
        403: "The request comes from a page of another origin.",
        408: "The body did not arrive in time.",
        413: "The body is too large.",
        415: "The Content-Type is not application/json.",
        421: "The Host is not one of this service.",
        422: "The body is no state, or one that contradicts itself: every `loc` says where.",
        503: "Too many requests wait, or the decision took too long: see Retry-After.",
    }.items()
}


class Service:
    """Requests in, decisions out.

    Args:
        decider: already warm.
        config: its limits and hosts.
        token: that requests must bear; None: none.
        version: of the package.

    Attributes:
        app: the ASGI application.
        registry: of its Prometheus metrics.
    """

    def __init__(
        self, decider: Decider, config: ServeConfig, token: str | None, version: str
    ) -> None:
        self.decider, self.config, self.token = decider, config, token
        self._example = decider.example
        self._hosts = LOCAL | {name.lower() for name in (*config.hosts, config.host)}
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="decider")
        self._pending: set[Future[bytes]] = set()
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._requests = Counter(
            "meshwright_requests", "Requests.", ["path", "status"], registry=registry
        )
        self._seconds = Histogram(
            "meshwright_request_seconds",
            "Seconds from a request's first byte to its answer.",
            ["path"],
            buckets=BUCKETS,
            registry=registry,
        )
        self._decision_seconds = Histogram(
            "meshwright_decision_seconds",
            "Seconds for which a decision kept the worker.",
            buckets=BUCKETS,
            registry=registry,
        )
        self._actions = Counter(
            "meshwright_actions", "Actions decided.", ["action"], registry=registry
        )
        Gauge(
            "meshwright_waiting_requests",
            "Requests that wait for a decision, or have it made.",
            registry=registry,
        ).set_function(lambda: len(self._pending))
        self.app = app = FastAPI(
            title=f"Meshwright: {Path(config.checkpoint).resolve().name}",
            version=version,
            description=f"Decisions of an exported {decider.kind} policy.",
            docs_url=None,
            redoc_url=None,
            dependencies=[Security(HTTPBearer(auto_error=False))] if token else [],
            responses={status: REFUSALS[status] for status in (401, 403, 421)},
        )
        app.openapi = self.openapi  # type: ignore[method-assign]
        app.add_middleware(self._measured)
        app.post(
            "/v1/decide",
            summary="What to do in a state",
            openapi_extra={"requestBody": {"required": True, **_content("State")}},
            responses={200: _content("Decision"), **REFUSALS},
        )(self.decide)

        if decider.kind == CLUSTER:
            self._extend(decider)

        @app.get("/v1/schema", summary="JSON Schemas of states and decisions")
        async def schema() -> dict[str, Any]:
            return {"state": decider.schema, "decision": decider.answer_schema}

        @app.get("/v1/example", summary="A state to try", responses={200: _content("State")})
        async def example() -> Response:
            return JSONResponse(self._example)

        @app.get("/healthz", summary="Whether it decides")
        async def health() -> dict[str, str]:
            return {"status": "ok"}

        @app.get("/metrics", include_in_schema=False)
        async def metrics() -> Response:
            return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

        @app.get("/", include_in_schema=False)
        async def page(request: Request) -> Response:
            return HTMLResponse(
                self._page(request), headers={"Content-Security-Policy": PAGE_POLICY}
            )

    def close(self) -> None:
        """Take no more decisions."""
        self._worker.shutdown(wait=False, cancel_futures=True)

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document, with the decider's schemas as components."""
        found = FastAPI.openapi(self.app)
        parts = found["components"]["schemas"]
        schemas = {"State": self.decider.schema, "Decision": self.decider.answer_schema}
        text = json.dumps(schemas).replace("#/$defs/", "#/components/schemas/")
        for name, schema in json.loads(text).items():
            parts |= {**schema.pop("$defs", {}), name: schema}
        return found

    async def decide(self, request: Request) -> Response:
        """Decide on the state that is the body of the request."""
        return await self._answered(request, self._decide)

    def _extend(self, decider: Decider) -> None:
        """Answer other schedulers in their contracts, where jobs need not say their durations."""
        from agents.cluster.live import ClusterDecider
        from experiments.serving.gangs import GangDecisions
        from experiments.serving.kubernetes import Extender
        from experiments.serving.volcano import VolcanoExtender

        def route(path: str, answer: Callable[[bytes], Any]) -> None:
            async def asked(request: Request) -> Response:
                return await self._answered(
                    request, lambda body: to_json(answer(body), inf_nan_mode="null")
                )

            self.app.add_route(path, asked, ["POST"], include_in_schema=False)

        if isinstance(decider, ClusterDecider) and not decider.knows_durations:
            decisions = GangDecisions(decider)
            for contract in (Extender(decisions), VolcanoExtender(decisions)):
                for path, answer in contract.routes.items():
                    route(path, answer)

    async def _answered(self, request: Request, answer: Callable[[bytes], bytes]) -> Response:
        """What the worker says to the body of a request."""
        config, body = self.config, bytearray()
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
            raise HTTPException(415, f"the Content-Type is not {JSON}")
        try:
            async with asyncio.timeout(config.timeout_s):
                async for part in request.stream():
                    body += part
                    if len(body) > config.max_body_bytes:
                        raise HTTPException(
                            413, f"the body has more than {config.max_body_bytes} bytes"
                        )
        except TimeoutError:
            raise HTTPException(408, "the body did not arrive in time") from None
        except ClientDisconnect:
            raise HTTPException(499, "the client has gone") from None
        if len(self._pending) >= config.concurrency:
            raise HTTPException(503, "too many requests wait", LATER)
        future = self._worker.submit(self._timed, answer, bytes(body))
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        try:
            text = await asyncio.wait_for(asyncio.wrap_future(future), config.timeout_s)
        except TimeoutError:
            raise HTTPException(503, "the decision took too long", LATER) from None
        except InputError as error:
            faults = error.faults if isinstance(error, StateError) else [((), str(error))]
            details = [{"loc": ["body", *location], "msg": message} for location, message in faults]
            raise HTTPException(422, details) from None
        return Response(text, media_type=JSON)

    def _timed(self, answer: Callable[[bytes], bytes], body: bytes) -> bytes:
        start = time.perf_counter()
        text = answer(body)
        self._decision_seconds.observe(time.perf_counter() - start)
        return text

    def _decide(self, body: bytes) -> bytes:
        decision = self.decider.decide_json(body)
        text = json.dumps(decision.document(), allow_nan=False).encode()
        for action in decision.actions:
            self._actions.labels(action["action"]).inc()
        return text

    @cached_property
    def _paths(self) -> frozenset[str | None]:
        return frozenset(getattr(route, "path", None) for route in self.app.routes)

    def _measured(self, app: ASGIApp) -> ASGIApp:
        """Refuse or answer requests, and count them."""

        async def measured(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                return await app(scope, receive, send)
            start, status, path = time.perf_counter(), 500, scope["path"]

            async def noted(message: Message) -> None:
                nonlocal status
                status = message.get("status", status)
                await send(message)

            try:
                request = Request(scope)
                try:
                    self._check(request, path)
                except HTTPException as refused:
                    response = await http_exception_handler(request, refused)
                    await response(scope, receive, noted)
                else:
                    await app(scope, receive, noted)
            finally:
                label = path if path in self._paths else "other"
                self._requests.labels(label, status).inc()
                self._seconds.labels(label).observe(time.perf_counter() - start)

        return measured

    def _check(self, request: Request, path: str) -> None:
        """Raise where a request is for another host, of another's page or lacks the token."""
        headers, arrived = request.headers, (request.scope.get("server") or [""])[0]
        host = headers.get("host", "").lower()
        found = AUTHORITY.fullmatch(host)
        if found is None or (found[1] or found[2]) not in {*self._hosts, arrived}:
            raise HTTPException(421, "the Host is not one of this service (serve hosts=[<name>])")
        if not {f"http://{host}", f"https://{host}"}.issuperset(
            origin.lower() for origin in headers.getlist("origin")
        ):
            raise HTTPException(403, "the Origin is not this service")
        if self.token is None or path in WITHOUT_TOKEN:
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        right = hmac.compare_digest(given.strip().encode(), self.token.encode())
        if scheme.lower() != "bearer" or not right:
            raise HTTPException(401, "a token is needed", {"WWW-Authenticate": "Bearer"})

    def _page(self, request: Request) -> str:
        """A page with the example to try; nothing in it is loaded from elsewhere."""
        text = Path(__file__).with_name("page.html").read_text("utf-8")
        if self.token is None:
            text = re.sub(r"<!--token-->.*?<!---->", "", text)
        else:  # a link cannot bear it
            text = re.sub(r'<a href="(?!healthz").*?>(.*?)</a>', r"\1", text)
        shown = {
            "title": self.app.title,
            "version": self.app.version,
            "example": json.dumps(self._example),
            "url": f"{request.url.scheme}://{request.headers['host']}",
        }
        return Template(text).substitute({key: escape(value) for key, value in shown.items()})
