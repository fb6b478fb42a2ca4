"""An exported policy behind HTTP."""

from __future__ import annotations

from dataclasses import asdict

from agents.exported import decider_kind, load_decider
from experiments.run.one_run import Result, Run
from experiments.serving.server import listening, serve
from experiments.serving.service import Service
from experiments.serving.settings import ServeConfig, read_token, require_hosts


def serving(config: ServeConfig, run: Run) -> Result:
    """Load, compile, listen and answer."""
    token = read_token(config.token_file, config.host)
    require_hosts(config.hosts)
    with listening(config.host, config.port) as at:
        limits = asdict(config.limits).get(decider_kind(config.checkpoint), {})
        decider = load_decider(config.checkpoint, **limits)
        decider.warm()  # compiles, which the console tells
        service = Service(decider, config, token, run.provenance.package_version)
        run.console.live = True  # between requests it prints nothing
        serve(service, at, lambda url: run.console.print(f"listening at {url}", soft_wrap=True))
    answered = service.registry.get_sample_value(
        "meshwright_requests_total", {"path": "/v1/decide", "status": "200"}
    )
    return Result({"decisions": int(answered or 0)}, run.provenance)
