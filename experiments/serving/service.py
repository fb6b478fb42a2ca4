"""The HTTP service of a decider: what it answers, what it refuses, what it counts.

A decision is made in a thread of its own, one after the other, so that the thread that talks to
clients is never busy for long. Who comes when too many wait is told to come again; who sends too
much, too slowly or nonsense is told so, and disturbs nobody. What a page of somebody else's makes a
browser send is refused: its `Origin` is another, or its `Host`, or it is no JSON.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from starlette.requests import ClientDisconnect
from typing_extensions import TypedDict  # pydantic, below Python 3.12

from agents.decision import Decider, Form, StateError
from envs.errors import InputError
from experiments.serving.page import POLICY, page

JSON = "application/json"
BUCKETS = (0.002, 0.005, 0.01, 0.015, 0.02, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
OPEN_PATHS = frozenset({"/", "/healthz"})
PATHS = ("/", "/healthz", "/metrics", "/openapi.json", "/v1/decide", "/v1/example", "/v1/schema")
LATER = {"Retry-After": "1"}  # seconds
LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
AUTHORITY = re.compile(r"(?:\[([0-9a-f:.%]+)\]|([^\s/:@\[\]]+))(?::\d*)?")  # a host, and its port
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


@dataclass(frozen=True)
class Limits:
    """What a service takes.

    Attributes:
        max_body_bytes: of a request.
        concurrency: requests that wait for a decision, or have it made, at once.
        timeout_s: for a body to arrive, and again for its decision.
        token: that requests must bear; None: none.
        hosts: names of the service in requests, in small letters, beside `LOCAL` and the address
            at which a request arrives.
    """

    max_body_bytes: int
    concurrency: int
    timeout_s: float
    token: str | None = None
    hosts: frozenset[str] = frozenset()


class Fault(TypedDict):
    """What is wrong where in a body."""

    loc: list[str | int]
    msg: str


class Refusal(TypedDict):
    """Why a request is not answered."""

    detail: str | list[Fault]


class RefusalError(Exception):
    """A request that is not answered."""

    def __init__(self, status: int, message: str, **headers: str) -> None:
        self.status, self.message, self.headers = status, message, headers


class Service:
    """Requests in, decisions out.

    Attributes:
        app: the ASGI application.
        registry: of its Prometheus metrics.
    """

    def __init__(self, decider: Decider, limits: Limits, title: str, version: str) -> None:
        self.decider, self.limits = decider, limits
        self._schema = decider.schema
        self._answer_schema = decider.answer_schema
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="decider")
        self._busy = 0
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "meshwright_requests", "Requests.", ["path", "status"], registry=self.registry
        )
        self._seconds = Histogram(
            "meshwright_request_seconds",
            "Seconds from a request's first byte to its answer.",
            ["path"],
            buckets=BUCKETS,
            registry=self.registry,
        )
        self._decision_seconds = Histogram(
            "meshwright_decision_seconds",
            "Seconds for which a decision kept the worker.",
            buckets=BUCKETS,
            registry=self.registry,
        )
        self._actions = Counter(
            "meshwright_actions", "Actions decided.", ["action"], registry=self.registry
        )
        waiting = Gauge(
            "meshwright_waiting_requests",
            "Requests that wait for a decision, or have it made.",
            registry=self.registry,
        )
        waiting.set_function(lambda: self._busy)
        ProcessCollector(registry=self.registry)
        self.app = FastAPI(title=title, version=version, docs_url=None, redoc_url=None)
        self._route()
        self.app.openapi = self.openapi  # type: ignore[method-assign]
        self.app.add_middleware(_Measured, service=self)

    def close(self) -> None:
        """Take no more decisions."""
        self._worker.shutdown(wait=False, cancel_futures=True)

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document, with the decider's schemas as components."""
        found: dict[str, Any] = get_openapi(
            title=self.app.title,
            version=self.app.version,
            description=f"Decisions of an exported {self.decider.kind} policy.",
            routes=self.app.routes,
        )
        parts = found.setdefault("components", {}).setdefault("schemas", {})
        refusal = Form(Refusal, "Refusal").schema()
        named = {"State": self._schema, "Decision": self._answer_schema, "Refusal": refusal}
        for name, schema in named.items():
            moved = json.loads(json.dumps(schema).replace("#/$defs/", "#/components/schemas/"))
            parts |= moved.pop("$defs", {})
            moved.pop("$schema", None)
            parts[name] = moved
        if self.limits.token is not None:
            found["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            found["security"] = [{"token": []}]
        return found

    def _route(self) -> None:
        app, an_object = self.app, {JSON: {"schema": {"type": "object"}}}

        @app.post(
            "/v1/decide",
            summary="What to do in a state",
            response_class=Response,
            openapi_extra={"requestBody": {"required": True, "content": _json("State")}},
            responses=_responses("The decision.", _json("Decision"), *REFUSALS),
        )
        async def decide(request: Request) -> Response:
            return await self._answer(request)

        def constant(
            path: str, summary: str, told: str, content: dict[str, Any], answer: object, *more: int
        ) -> None:
            async def found() -> Response:
                return _answer(answer)

            responses = _responses(told, content, 403, 421, *more)
            app.get(
                path, summary=summary, name=path.rpartition("/")[2], response_class=Response,
                responses=responses,
            )(found)  # fmt: skip

        both = {"state": self._schema, "decision": self._answer_schema}
        of_both = "JSON Schemas of states and decisions"
        constant("/v1/schema", of_both, "Both.", an_object, both, 401)
        example = self.decider.example
        constant("/v1/example", "A state to try", "A state.", _json("State"), example, 401)
        constant("/healthz", "Whether it decides", "Yes.", an_object, {"status": "ok"})

        @app.get("/metrics", include_in_schema=False)
        async def metrics() -> Response:
            return Response(generate_latest(self.registry), media_type=CONTENT_TYPE_LATEST)

        @app.get("/", include_in_schema=False)
        async def shown(request: Request) -> Response:
            url = f"{request.url.scheme}://{request.headers['host']}"
            text = page(app.title, app.version, example, url, self.limits.token is not None)
            headers = {"Content-Security-Policy": POLICY}
            return Response(text, headers=headers, media_type="text/html")

    async def _answer(self, request: Request) -> Response:
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
            raise RefusalError(415, f"the Content-Type is not {JSON}")
        try:
            async with asyncio.timeout(self.limits.timeout_s):
                body = await self._body(request)
        except TimeoutError:
            raise RefusalError(408, "the body did not arrive in time") from None
        except ClientDisconnect:
            raise RefusalError(499, "the client has gone") from None
        if self._busy >= self.limits.concurrency:
            raise RefusalError(503, "too many requests wait", **LATER)
        self._busy += 1
        loop = asyncio.get_running_loop()
        future = self._worker.submit(self._decide, body)
        future.add_done_callback(lambda _: loop.call_soon_threadsafe(self._free))
        try:
            async with asyncio.timeout(self.limits.timeout_s):
                return Response(await asyncio.shield(asyncio.wrap_future(future)), media_type=JSON)
        except TimeoutError:
            future.cancel()
            raise RefusalError(503, "the decision took too long", **LATER) from None
        except InputError as error:
            faults = error.faults if isinstance(error, StateError) else [((), str(error))]
            detail = [{"loc": ["body", *location], "msg": told} for location, told in faults]
            return _answer({"detail": detail}, 422)

    def _free(self) -> None:
        self._busy -= 1

    async def _body(self, request: Request) -> bytes:
        most = self.limits.max_body_bytes
        told = f"the body has more than {most} bytes"
        length = request.headers.get("content-length", "")
        if length.isascii() and length.isdigit() and int(length[:20]) > most:
            raise RefusalError(413, told)
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > most:
                raise RefusalError(413, told)
        return bytes(body)

    def _decide(self, body: bytes) -> bytes:
        start = time.perf_counter()
        decision = self.decider.decide_json(body)
        text = json.dumps(decision.document(), allow_nan=False).encode()
        for action in decision.actions:
            self._actions.labels(action["action"]).inc()
        self._decision_seconds.observe(time.perf_counter() - start)
        return text

    def require_own(self, arrived: str, headers: list[tuple[bytes, bytes]]) -> None:
        """Raise where a request is meant for another host, or comes from a page of another.

        Args:
            arrived: address at which it did.
            headers: of the request.
        """
        found = AUTHORITY.fullmatch(next(iter(_told(headers, b"host")), ""))
        if found is None or (found[1] or found[2]) not in LOCAL | self.limits.hosts | {arrived}:
            raise RefusalError(421, "the Host is none of this service (serve hosts=[<name>])")
        own = {f"{scheme}://{found[0]}" for scheme in ("http", "https")}
        if not own.issuperset(_told(headers, b"origin")):
            raise RefusalError(403, "the Origin is not this service")

    def require_token(self, path: str, headers: list[tuple[bytes, bytes]]) -> None:
        """Raise where a request lacks the token."""
        token = self.limits.token
        if token is None or path in OPEN_PATHS:
            return
        given = next((value for name, value in headers if name == b"authorization"), b"")
        scheme, _, bearer = given.partition(b" ")
        right = hmac.compare_digest(bearer.strip(), token.encode())
        if scheme.lower() != b"bearer" or not right:
            raise RefusalError(401, "a token is needed", **{"WWW-Authenticate": "Bearer"})

    def count(self, path: str, status: int, seconds: float) -> None:
        path = path if path in PATHS else "other"
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)


class _Measured:
    """Around the application: tokens, refusals, counts. Nothing gets past it unanswered."""

    def __init__(self, app: Callable[..., Awaitable[None]], service: Service) -> None:
        self._app, self._service = app, service

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, statuses = time.perf_counter(), []

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])
            await send(message)

        path = scope["path"]
        try:
            self._service.require_own((scope.get("server") or ("",))[0], scope["headers"])
            self._service.require_token(path, scope["headers"])
            await self._app(scope, receive, sent)
        except RefusalError as refused:
            if not statuses:
                response = _answer({"detail": refused.message}, refused.status)
                response.headers.update(refused.headers)
                await response(scope, receive, sent)
        except Exception:
            statuses.append(500)  # is sent, and told in the log, further out
            raise
        finally:
            status = statuses[0] if statuses else 499  # the client has gone
            self._service.count(path, status, time.perf_counter() - start)


def _told(headers: list[tuple[bytes, bytes]], wanted: bytes) -> list[str]:
    return [value.decode("latin-1").lower() for name, value in headers if name == wanted]


def _answer(content: object, status: int = 200) -> Response:
    return Response(json.dumps(content, allow_nan=False), status, media_type=JSON)


def _json(name: str) -> dict[str, Any]:
    return {JSON: {"schema": {"$ref": f"#/components/schemas/{name}"}}}


def _responses(told: str, content: dict[str, Any], *refused: int) -> dict[int | str, Any]:
    """An answer, and what may be answered in its place."""
    answers: dict[int | str, Any] = {200: {"description": told, "content": content}}
    for status in refused:
        answers[status] = {"description": REFUSALS[status], "content": _json("Refusal")}
    return answers


REFUSALS = {
    401: "The token is missing or wrong.",
    403: "The request comes from a page of another origin.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The Content-Type is not application/json.",
    421: "The Host is not one of this service.",
    422: "The body is no state, or one that contradicts itself: every `loc` says where.",
    503: "Too many requests wait, or the decision took too long: come again after Retry-After.",
}
