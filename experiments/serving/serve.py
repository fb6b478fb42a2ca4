"""An exported policy behind HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Gt, Le

from agents.exported import decider_kind, load_decider
from envs.bounds import Count, Positive, bounded
from experiments.run.one_run import Result, Run
from experiments.serving.connections import DecisionLimits


@bounded
@dataclass(kw_only=True)
class ServeConfig:
    """`conf/serve.yaml`."""

    # a shipped policy, or the folder of an exported policy of clusters or of placement
    checkpoint: str = "unknown_durations"
    # address it listens at; others than those of this machine need token_file
    host: str = "127.0.0.1"
    port: Annotated[int, Gt(-1), Le(65_535)] = 8000  # 0: any that is free
    # file with the token that every request must bear (Authorization: Bearer ...); null:
    # none, on this machine alone
    token_file: str | None = None
    # further names of this service in requests (Host), such as that of a proxy; others are
    # refused with 421
    hosts: Sequence[str] = ()
    # open at once; of more, the one that waits for its client longest is closed
    connections: Count = 768
    connections_per_peer: Count = 384  # of them, from one address
    # seconds for the headers of a request to arrive; then the connection is closed
    headers_s: Positive = 5.0
    max_body_bytes: Count = 1048576  # of a request; more is refused with 413
    # requests that wait for a decision at once; more are refused with 503 and Retry-After
    concurrency: Count = 256
    timeout_s: Positive = 10.0  # seconds for a body to arrive (408), and for its decision (503)
    limits: DecisionLimits
    seed: int
    json: bool


def serving(config: ServeConfig, run: Run) -> Result:
    """Load, compile, listen and answer."""
    from experiments.serving.connections import ConnectionLimits  # needs the extra
    from experiments.serving.server import listening, read_hosts, read_token, serve
    from experiments.serving.service import Limits, Service

    token = read_token(config.token_file, config.host)
    hosts = read_hosts(config.hosts, config.host)
    at = listening(config.host, config.port)
    try:
        limited = asdict(config.limits)[decider_kind(config.checkpoint)]
        decider = load_decider(config.checkpoint, **limited)
        decider.warm()  # compiles, which the console tells
    except BaseException:
        at.close()
        raise
    limits = Limits(config.max_body_bytes, config.concurrency, config.timeout_s, token, hosts)
    name = Path(config.checkpoint).resolve().name  # where it lies is nobody else's business
    service = Service(decider, limits, f"Meshwright: {name}", run.provenance.package_version)
    borne = ConnectionLimits(config.connections, config.connections_per_peer, config.headers_s)
    run.console.live = True  # nobody asks, nothing is said
    serve(service, borne, at, lambda url: run.console.print(f"listening at {url}", soft_wrap=True))
    answered = service.registry.get_sample_value(
        "meshwright_requests_total", {"path": "/v1/decide", "status": "200"}
    )
    return Result({"decisions": int(answered or 0)}, run.provenance)
