"""Training steps of the models of `zoo_models`, captured once and kept on disk.

Nothing is downloaded, no weight is allocated. The modules themselves are in `zoo_modules`, which
alone imports torch and transformers.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Unpack

from envs.errors import InputError
from envs.graphs.op_graph import OpGraph
from envs.graphs.storage import load_graph, save_graph
from envs.graphs.zoo_models import ZooModel, ZooShape, zoo_model

_LOG = logging.getLogger(__name__)
CAPTURE_VERSION = 2  # raised with every change of what capturing gives
_PACKAGES = ("torch", "transformers")


def default_folder() -> Path:
    """`$MESHWRIGHT_CACHE`, or `~/.cache/meshwright/graphs`."""
    chosen = os.environ.get("MESHWRIGHT_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "meshwright" / "graphs"


def cache_key(key: Mapping[str, object]) -> str:
    """SHA-256 of `key`, of `CAPTURE_VERSION` and of the versions of torch and transformers.

    `key` holds JSON values and says everything else that the graph depends on.
    """
    packages = {package: version(package) for package in _PACKAGES}
    parts = {"key": key, "packages": packages, "capture": CAPTURE_VERSION}
    text = json.dumps(parts, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def cached_graph(
    key: Mapping[str, object], build: Callable[[], OpGraph], folder: Path | None = None
) -> OpGraph:
    """The graph of `key`: read from `folder`, or built and written there.

    An entry that is truncated or damaged is never used: it is built again, with a warning. A
    folder that cannot be written costs only the saving of time, and a warning.

    Args:
        key: JSON mapping that determines the graph.
        folder: where the entries are; `default_folder()` if none is given.
    """
    folder = default_folder() if folder is None else folder
    digest = cache_key(key)
    path = folder / f"{digest}.npz"
    if path.exists():
        try:
            return load_graph(path)
        except (InputError, OSError) as error:
            _LOG.warning("damaged cache entry is built again: %s", error)
    graph = build()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_graph(graph, path, {"key": dict(key), "cache_key": digest})
    except OSError as error:
        _LOG.warning("graph could not be cached: %s", error)
    return graph


def zoo_graph(name: str, *, folder: Path | None = None, **shape: Unpack[ZooShape]) -> OpGraph:
    """The training step of a model of the zoo, from the disk cache in `folder` where possible.

    Raises:
        InputError: as `zoo_model`, which takes the same.
    """
    model = zoo_model(name, **shape)
    return cached_graph(asdict(model), partial(capture_zoo_model, model), folder)


def capture_zoo_model(model: ZooModel) -> OpGraph:
    """Trace the training step, without the cache."""
    from envs.graphs.zoo_modules import capture

    return capture(model)
