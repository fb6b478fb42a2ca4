"""The zoo: training steps of well-known models.

Nothing is downloaded, no weight is allocated; graphs are cached on disk. The modules themselves
are in `zoo_modules`, which alone imports torch and transformers.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

from envs.errors import InputError
from envs.graphs.cache import cached_graph
from envs.graphs.op_graph import OpGraph
from envs.graphs.zoo_model import ZOO, ZooModel


def zoo_model(
    name: str,
    *,
    batch: int | None = None,
    sequence: int | None = None,
    micro_batches: int | None = None,
    head: str | None = None,
    optimizer: str | None = None,
    dtype: str | None = None,
) -> ZooModel:
    """A model of the zoo, with its own defaults for whatever is left out.

    Raises:
        InputError: an unknown name or a value the model cannot have.
    """
    if name not in ZOO:
        raise InputError(f"{name!r} is none of {', '.join(ZOO)}", file="zoo", field="name")
    model = ZOO[name]
    if sequence is not None and model.sequence is None:
        raise InputError(
            "a model of images has no sequence", file=f"graph {name}", field="sequence"
        )
    given: dict[str, Any] = {
        "batch": batch,
        "sequence": sequence,
        "micro_batches": micro_batches,
        "head": head,
        "optimizer": optimizer,
        "dtype": dtype,
    }
    changes = {field: value for field, value in given.items() if value is not None}
    return dataclasses.replace(model, **changes)


def zoo_graph(
    name: str,
    *,
    batch: int | None = None,
    sequence: int | None = None,
    micro_batches: int | None = None,
    head: str | None = None,
    optimizer: str | None = None,
    dtype: str | None = None,
    folder: Path | None = None,
) -> OpGraph:
    """The training step of a model of the zoo, from the disk cache in `folder` where possible.

    Arguments left out have the model's own defaults (`ZOO`); `ZooModel` says what they mean.

    Raises:
        InputError: an unknown name or a value the model cannot have.
    """
    model = zoo_model(
        name,
        batch=batch,
        sequence=sequence,
        micro_batches=micro_batches,
        head=head,
        optimizer=optimizer,
        dtype=dtype,
    )
    return cached_graph(dataclasses.asdict(model), partial(capture_zoo_model, model), folder)


def capture_zoo_model(model: ZooModel) -> OpGraph:
    """Trace the training step, without the cache."""
    from envs.graphs.zoo_modules import capture

    return capture(model)
