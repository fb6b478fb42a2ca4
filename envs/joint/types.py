"""What the agents see of a step between decisions: the placer, and every server's allocator."""

from __future__ import annotations

from functools import partial

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envs.arrays import FloatArray
from envs.joint.piped import HIGH, LOW, WeightedStep, off_diagonal, share
from envs.placement.types import GroupPlacement, PlacementObservation, over_largest
from envs.spaces import PaddedGraph, clipped

PipeTableau = dict[str, NDArray[np.generic]]

PIPE_WIDTH, SERVER_WIDTH = 11, 8
_clip = partial(clipped, low=LOW, high=HIGH)


class PlacerObservation(PlacementObservation):
    """The `PaddedGraph` of `meshwright/Placement-v0`, on the network as the allocators share it.

    As `envs.placement.types.PlacementObservation`, where transfer seconds are those with
    equal weights of all pipes, and T is the step time at the start. Two features follow the present
    rates: `link_features` 1 (seconds all tensors of the step would take) and `candidate_features`
    6, the look-ahead.
    """

    def observe(
        self, piped: WeightedStep, groups: GroupPlacement, candidate_s: FloatArray, start_s: float
    ) -> PaddedGraph:
        """The observation of groups on a network: fresh arrays; else as `__call__`.

        Raises:
            InputError: the groups do not fit into the padded shapes.
        """
        seen = self(groups, candidate_s, start_s)
        by_class = over_largest(piped.class_seconds)[groups.fused.topology.link_class]
        seen["link_features"][:, :, 1] = self.layout.clip(by_class)
        return seen


class AllocatorObservation:
    """One server's pipes to the S - 1 others, in their order; features are clipped to [-4, 4].

    | key | dtype, shape |
    |---|---|
    | pipe_features | float32 (S - 1, 11) |
    | server_features | float32 (8,) |
    | action_mask | int8 (1 + 2 (S - 1),): keep, raise each pipe, lower each pipe |

    A raise is masked at the highest level, a lowering at the lowest, both where it is another
    server's turn; to keep is always allowed.

    | pipe_features | |
    |---|---|
    | 0 | level / highest level |
    | 1 | rate / rate it would have with its links to itself |
    | 2 | the same with equal weights of all pipes |
    | 3 | seconds its transfers take, one after another / step time |
    | 4 | the same at the rate it would have alone / step time at the start |
    | 5 | transfers / most of a pipe |
    | 6 | bytes / bytes the server sends |
    | 7 | bytes / bytes the receiver receives |
    | 8, 9 | look-ahead: s(step time with the level one higher, one lower / step time - 1), where
      s(x) = sign(x) log(1 + 1000 abs(x)) / 2; 4 where that is masked |
    | 10 | 1: the smallest step time of all changes of this server's levels is below the present
      one and a change of this pipe reaches it |

    | server_features | |
    |---|---|
    | 0 | share of the decisions of the episode behind |
    | 1 | share of the groups placed |
    | 2 | step time / step time at the start |
    | 3 | mean compute seconds of its devices / step time |
    | 4, 5 | bytes it sends, receives / bytes between all servers |
    | 6 | 1: the current group stands here |
    | 7 | sum of the rates of its pipes / the same with equal weights |

    Args:
        servers: S, at least 2.
    """

    def __init__(self, servers: int) -> None:
        self.servers = servers
        others = servers - 1
        self.space = spaces.Dict(
            {
                "pipe_features": spaces.Box(LOW, HIGH, (others, PIPE_WIDTH), np.float32),
                "server_features": spaces.Box(LOW, HIGH, (SERVER_WIDTH,), np.float32),
                "action_mask": spaces.Box(0, 1, (1 + 2 * others,), np.int8),
            }
        )

    def __call__(
        self,
        piped: WeightedStep,
        groups: GroupPlacement,
        step_time: float,
        start_s: float,
        changed_s: FloatArray,
        decided: float,
    ) -> list[PipeTableau]:
        """The observation of every server: fresh arrays.

        Args:
            step_time: seconds now.
            start_s: at the start.
            changed_s: (S, S, 2) with the level of a pipe one higher, one lower; inf: not allowed.
            decided: share of the episode.
        """
        seconds, nbytes, transfers = piped.sent
        sent, received = nbytes.sum(axis=1), nbytes.sum(axis=0)
        changed = off_diagonal(changed_s)  # (S, S - 1, 2): (seconds one level higher, lower)
        change = changed / step_time - 1.0
        best = changed.min(axis=(1, 2))
        reaches = changed.min(axis=2) == best[:, None]
        alone = off_diagonal(piped.alone_rate)
        pipes = np.stack(
            [
                off_diagonal(piped.level) / piped.top,
                off_diagonal(piped.rate) / alone,
                off_diagonal(piped.equal_rate) / alone,
                off_diagonal(seconds) / step_time,
                off_diagonal(nbytes) / alone / start_s,
                off_diagonal(transfers) / max(int(transfers.max()), 1),
                off_diagonal(share(nbytes, sent[:, None])),
                off_diagonal(share(nbytes, received)),
                _signed_log(change[:, :, 0]),
                _signed_log(change[:, :, 1]),
                reaches & (best < step_time)[:, None],
            ],
            axis=2,
        )
        server = groups.fused.topology.server
        here = np.arange(self.servers) == server[groups.device[groups.current]]
        compute = np.bincount(server, weights=groups.compute_seconds(), minlength=self.servers)
        servers = np.stack(
            [
                np.full(self.servers, decided),
                np.full(self.servers, float(groups.placed.mean())),
                np.full(self.servers, step_time / start_s),
                compute / np.bincount(server, minlength=self.servers) / step_time,
                share(sent, sent.sum()),
                share(received, received.sum()),
                here,
                piped.rate.sum(axis=1) / piped.equal_rate.sum(axis=1),
            ],
            axis=1,
        )
        pipes32, servers32 = _clip(pipes), _clip(servers)
        able = np.isfinite(changed).transpose(0, 2, 1)
        return [
            {
                "pipe_features": pipes32[s].copy(),
                "server_features": servers32[s].copy(),
                "action_mask": np.append(True, able[s].ravel()).astype(np.int8),
            }
            for s in range(self.servers)
        ]


def _signed_log(values: FloatArray) -> FloatArray:
    return np.asarray(np.sign(values) * np.log1p(1000.0 * np.abs(values)) / 2.0)
