"""The page of a service: an example to try, a line for a shell, and what else there is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
LINKS = {
    "/v1/example": "the state above",
    "/v1/schema": "JSON Schemas of states and decisions",
    "/openapi.json": "OpenAPI document",
    "/healthz": "whether it decides",
    "/metrics": "Prometheus metrics",
}
TOKEN = (
    '<label for="token">Token</label>'
    '<input id="token" type="password" autocomplete="off" placeholder="Bearer token">'
)


def page(title: str, version: str, example: Mapping[str, Any], url: str, has_token: bool) -> str:
    """The page; nothing in it is loaded from elsewhere.

    Args:
        title: of the service.
        version: of the package.
        example: a state.
        url: of the service, as its client knows it.
        has_token: whether requests must bear one; links, which cannot, are then none.
    """
    bearer = " -H 'Authorization: Bearer <token>'" if has_token else ""
    curl = (
        f"curl -s{bearer} {url}/v1/example > state.json\n"
        f"curl -s{bearer} {url}/v1/decide -H 'Content-Type: application/json' -d @state.json"
    )
    items = (
        f"<li><code>GET {path}</code>: {told}</li>"
        if has_token and path != "/healthz"
        else f'<li><a href="{path[1:]}"><code>GET {path}</code></a>: {told}</li>'
        for path, told in LINKS.items()
    )
    text = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    return Template(text).substitute(
        title=escape(title),
        version=escape(version),
        example=escape(json.dumps(example)),
        token=TOKEN if has_token else "",
        curl=escape(curl),
        links="".join(items),
    )
