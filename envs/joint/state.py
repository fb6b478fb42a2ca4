"""A training step between decisions: where its groups stand, how its pipes share the links."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envs.arrays import FloatArray
from envs.errors import InputError
from envs.joint.weighted_step import MakeSimulator, WeightedStep
from envs.placement.generator import PlacementInstance
from envs.placement.groups import GroupPlacement
from envs.placement.observation import PlacementObservation, over_largest
from envs.spaces import PaddedGraph, clipped
from envs.step.order import OrderRule
from envs.step.plans import BandwidthAllocation


class JointState:
    """Placement and pipe levels of one instance, the step time they make, and the look-ahead.

    Args:
        top: levels go from -top to top.
        step: octaves of weight from a level to the next.

    Raises:
        InputError: a link class between servers has no bandwidth, only tabulated times.
    """

    def __init__(
        self,
        instance: PlacementInstance,
        top: int,
        step: float,
        simulator: MakeSimulator,
        order_rule: OrderRule | None,
    ) -> None:
        self._given = instance.fused
        self.piped = WeightedStep(
            instance.problem, instance.fusion, top, step, simulator, order_rule
        )
        self.instance = replace(instance, fused=self.piped.problem)
        self.groups = GroupPlacement(self.piped.problem, instance.fusion)
        self.alone_rate = self.piped.alone_rate()

    def follows(self, instance: PlacementInstance) -> bool:
        """Take over `instance` if it is about the same fused problem; whether it is."""
        if instance.fused is not self._given:
            return False
        self.instance = replace(instance, fused=self.piped.problem)
        return True

    @property
    def allocation(self) -> BandwidthAllocation:
        """The rates of the channels."""
        return self.piped.allocation

    def start(self, devices: Any, levels: Any, length: int, turn: int | None) -> None:
        """Nothing decided: groups on `devices` (G,), pipes at `levels` (S, S).

        The first `length` groups are the current run; `turn` as in `advance`.

        Raises:
            InputError: either is not what it should be, or the step takes no time.
        """
        self.groups.start(devices)
        self.groups.look(0, length)
        shape, top = self.piped.level.shape, self.piped.top
        given = np.array(levels, dtype=np.int64)
        if given.shape != shape or (np.abs(given) > top).any():
            raise InputError(f"is not {shape} levels from {-top} to {top}", field="options.levels")
        self.piped.set_levels(given)
        self._play()
        self.reference = self.step_time  # seconds
        if not self.reference > 0.0:
            name = self.instance.fused.graph.name
            raise InputError("a step takes no time", file=f"graph {name}")
        self._look(turn)

    def decide(self, device: int, changes: list[int]) -> None:
        """Put the current run on `device` and change levels as the allocators' actions say.

        Action 0 keeps, 1 + i raises the pipe to the i-th other server, S + i lowers it; a level at
        its end stays.
        """
        before = self.groups.device.copy()
        self.groups.place(device)
        level, others = self.piped.level.copy(), len(changes) - 1
        for server, action in enumerate(changes):
            if action:
                lower, index = divmod(action - 1, others)
                other = index + (index >= server)
                changed = level[server, other] + (-1 if lower else 1)
                if abs(changed) <= self.piped.top:
                    level[server, other] = changed
        if (level != self.piped.level).any():
            self.piped.set_levels(level)
            self._play()
        elif (self.groups.device != before).any():
            self._play()

    def advance(self, group: int, length: int, turn: int | None) -> None:
        """Make the run of `length` groups from `group` the current one and look ahead.

        Of the allocators only that of server `turn` may act next, or all of them.
        """
        self.groups.look(group, length)
        self._look(turn)

    def finish(self, turn: int | None) -> FloatArray:
        """(D,) bytes of the simulated peak memory; looks ahead for the last observation."""
        self._look(turn)
        timeline = self.piped.simulator.run(self.groups.pieces, self._order)
        return timeline.peak_memory

    def _play(self) -> None:
        self.step_time, self._order = self.piped.play(self.groups.pieces)

    def _look(self, turn: int | None) -> None:
        """What the agents' actions would do: (D,) for the placer, (S, S, 2) for the allocators."""
        devices, variants = self.groups.variants()
        self.candidate_s = np.full(self.groups.able.shape[1], np.inf)
        moved = (variants != self.groups.pieces).any(axis=1)
        self.candidate_s[devices] = self.step_time
        self.candidate_s[devices[moved]] = self.piped.simulator.step_times(variants[moved])
        self.changed_s = self.piped.look(self.groups.pieces, self._order, turn)


PipeTableau = dict[str, NDArray[np.generic]]

PIPE_WIDTH, SERVER_WIDTH = 11, 8
LOW, HIGH = -4.0, 4.0
_clip = partial(clipped, low=LOW, high=HIGH)


class PlacerObservation(PlacementObservation):
    """The `PaddedGraph` of `meshwright/Placement-v0`, on the network as the allocators share it.

    As `envs.placement.observation.PlacementObservation`, where transfer seconds are those with
    equal weights of all pipes, and T is the step time at the start. Two features follow the present
    rates: `link_features` 1 (seconds all tensors of the step would take) and `candidate_features`
    6, the look-ahead.
    """

    def observe(self, state: JointState) -> PaddedGraph:
        """The observation of `state`: fresh arrays.

        Raises:
            InputError: the instance does not fit into the padded shapes.
        """
        seen = self(state.instance, state.groups, state.candidate_s, state.reference)
        by_class = over_largest(state.piped.class_seconds)
        link_class = state.instance.fused.topology.link_class
        seen["link_features"][:, :, 1] = self.layout.clip(by_class[link_class])
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
        number = np.arange(servers)
        self._others = np.array([number[number != s] for s in range(servers)])  # (S, S - 1)

    def __call__(self, state: JointState, decided: float) -> list[PipeTableau]:
        """The observation of every server: fresh arrays; `decided`: share of the episode."""
        piped, groups, step_time = state.piped, state.groups, state.step_time
        row, shape = (np.arange(self.servers)[:, None], self._others), piped.level.shape
        nbytes = piped.crossings.nbytes.reshape(shape)
        transfers = piped.crossings.transfers.reshape(shape)
        sent, received = nbytes.sum(axis=1), nbytes.sum(axis=0)
        changed = state.changed_s[row]  # (S, S - 1, 2): (seconds one level higher, lower)
        change = changed / step_time - 1.0
        best = changed.min(axis=(1, 2))
        reaches = changed.min(axis=2) == best[:, None]
        own = nbytes[row]
        alone = state.alone_rate[row]
        pipes = np.stack(
            [
                piped.level[row] / piped.top,
                piped.rate[row] / alone,
                piped.equal_rate[row] / alone,
                piped.crossings.seconds.reshape(shape)[row] / step_time,
                own / alone / state.reference,
                transfers[row] / max(int(transfers.max()), 1),
                own / _positive(sent)[:, None],
                own / _positive(received)[self._others],
                _signed_log(change[:, :, 0]),
                _signed_log(change[:, :, 1]),
                reaches & (best < step_time)[:, None],
            ],
            axis=2,
        )
        server = state.instance.problem.topology.server
        here = np.arange(self.servers) == server[groups.device[groups.current]]
        compute = np.bincount(server, weights=groups.compute_seconds(), minlength=self.servers)
        total = float(_positive(sent.sum()))
        servers = np.stack(
            [
                np.full(self.servers, decided),
                np.full(self.servers, float(groups.placed.mean())),
                np.full(self.servers, step_time / state.reference),
                compute / np.bincount(server, minlength=self.servers) / step_time,
                sent / total,
                received / total,
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


def _positive(values: FloatArray | np.floating) -> FloatArray:
    """The values, 1 for 0: a denominator for what is then 0 everywhere."""
    return np.where(np.asarray(values) > 0, values, 1.0)
