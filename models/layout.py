"""The layout of one observation: names, dtypes and shapes in the order exported policies take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le
from numpy.typing import NDArray

from envs.cluster.environment.observation import ADVISED

MOST = 2**20  # features of one thing
Observation = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class FieldLayout:
    """One array of the observation: its name, dtype and symbolic shape.

    A dimension is a letter, which stands for any size, or a fixed number. A letter means the same
    size in all arrays: those of `ClusterObservation`, and A actions. An optional array that an
    observation does not have is one without rows.
    """

    name: str
    dtype: Literal["float32", "float64", "int8", "int32", "int64", "bool"]
    shape: tuple[str | Annotated[int, Ge(0), Le(MOST)], ...]
    optional: bool = False


@dataclass(frozen=True)
class ClusterWidths:
    """Columns of the arrays about a cluster; peers, state, expert's action, sent: 0 without.

    `types` is how many of a server's columns, the last, say which GPU type it has.
    """

    cluster: int
    rack: int
    server: int
    job: int
    share: int
    types: int
    peer: int
    state: int
    advised: int = 0
    sent: int = 0


def cluster_layout(widths: ClusterWidths) -> tuple[FieldLayout, ...]:
    """The arrays of a scheduler's observation in the order in which exported policies take them.

    What only a critic sees in training, the state of all schedulers, is not among them.
    """
    peers = FieldLayout("peer_features", "float32", ("F", widths.peer), optional=True)
    sent = FieldLayout("sent_features", "float32", ("F", widths.sent), optional=True)
    return (
        FieldLayout("cluster_features", "float32", (widths.cluster,)),
        FieldLayout("rack_features", "float32", ("R", widths.rack)),
        FieldLayout("rack_mask", "int8", ("R",)),
        FieldLayout("server_features", "float32", ("N", widths.server)),
        FieldLayout("server_rack", "int64", ("N",)),
        FieldLayout("server_mask", "int8", ("N",)),
        FieldLayout("running_features", "float32", ("M", widths.job)),
        FieldLayout("running_mask", "int8", ("M",)),
        FieldLayout("pending_features", "float32", ("W", widths.job)),
        FieldLayout("pending_mask", "int8", ("W",)),
        FieldLayout("share_index", "int64", (2, "E")),
        FieldLayout("share_features", "float32", ("E", widths.share)),
        FieldLayout("share_mask", "int8", ("E",)),
        *((peers,) if widths.peer else ()),
        *((sent,) if widths.sent else ()),
        *((FieldLayout(ADVISED, "int64", (1,)),) if widths.advised else ()),
        FieldLayout("action_mask", "int8", ("A",)),
    )


def num_cluster_actions(sizes: Mapping[str, int], preemption: bool) -> int:
    """A, as `ClusterActions` numbers them, from the sizes by letter."""
    groups = sizes["N"] + sizes["R"] + 1 + sizes.get("F", 0)
    return sizes["W"] * groups + preemption * sizes["M"] + 1


FEATURES, CONTEXTS = 18, 4  # of a cell, and of the decision to which cell a job is sent


def cell_shapes(width: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the weights of a choice of cells, by name; hidden layers of no width are none."""
    return {
        "weights": (FEATURES, CONTEXTS),
        "first": (FEATURES + CONTEXTS, width), "first_bias": (width,),
        "second": (width, width), "second_bias": (width,), "last": (width,),
    }  # fmt: skip
