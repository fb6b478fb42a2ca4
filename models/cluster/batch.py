"""`ClusterBatch`: a batch of cluster observations as one graph, and what it says outright."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from envs.cluster.environment.observation import JOB_BASE, PEER_BASE, SERVER_BASE


class Bags(NamedTuple):
    """Which rows are added, one bag after the other."""

    rows: Tensor  # (E,)
    starts: Tensor  # (bags,) where a bag begins
    weights: Tensor  # (E,)


class PackedLinks:
    """Edges that are all there, sorted by both ends, so that sums need no scattering.

    Links go between `sizes[0]` rows of a first kind and `sizes[1]` of a second: `to_second` gives
    (sizes[1], F) sums of the first kind's rows, `to_first` the other way.

    Args:
        first: (E,) rows of the first kind.
        second: (E,) rows of the second.
        sizes: how many rows there are.
        weights: (E,) of what comes to the first kind, to the second.
    """

    def __init__(
        self, first: Tensor, second: Tensor, sizes: tuple[int, int], weights: tuple[Tensor, Tensor]
    ) -> None:
        by_first, by_second = first.argsort(), second.argsort()
        starts = _starts(first, sizes[0]), _starts(second, sizes[1])

        def both(weight: Tensor) -> tuple[Bags, Bags]:
            return (
                Bags(second[by_first], starts[0], weight[by_first]),
                Bags(first[by_second], starts[1], weight[by_second]),
            )

        self._to_first, self._to_second = both(weights[0]), both(weights[1])[::-1]

    def to_second(self, rows: Tensor) -> Tensor:
        return _sums(rows, *self._to_second)

    def to_first(self, rows: Tensor) -> Tensor:
        return _sums(rows, *self._to_first)


class PaddedLinks:
    """Edges of which some are padding, whose sums go to one extra row, a sink, that is dropped.

    Args:
        first: (E,) rows of the first kind; any row where an edge is padding.
        second: (E,) rows of the second; any row where an edge is padding.
        sizes: how many rows there are.
        weights: (E,) of what comes to the first kind, to the second.
        real: (E,) bool, no padding.
    """

    def __init__(
        self,
        first: Tensor,
        second: Tensor,
        sizes: tuple[int, int],
        weights: tuple[Tensor, Tensor],
        real: Tensor,
    ) -> None:
        self._ends = first, second
        self._sinks = first.where(real, sizes[0]), second.where(real, sizes[1])
        self._sizes = sizes
        self._weights = tuple(weight.unsqueeze(1) for weight in weights)

    def to_second(self, rows: Tensor) -> Tensor:
        return self._scattered(rows, 0, 1)

    def to_first(self, rows: Tensor) -> Tensor:
        return self._scattered(rows, 1, 0)

    def _scattered(self, rows: Tensor, source: int, target: int) -> Tensor:
        sent = rows.index_select(0, self._ends[source]) * self._weights[target]
        index = self._sinks[target].unsqueeze(1).expand(-1, rows.shape[1])
        size = self._sizes[target]
        return rows.new_zeros(size + 1, rows.shape[1]).scatter_add(0, index, sent)[:size]


class _Sums(torch.autograd.Function):
    """Sums over bags; the gradient is a sum over the bags of the other direction."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, *bags: Tensor) -> Tensor:
        ctx.save_for_backward(*bags[3:])
        return _summed(rows, Bags(*bags[:3]))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return (_summed(gradient.contiguous(), Bags(*ctx.saved_tensors)), *[None] * 6)


def _sums(rows: Tensor, there: Bags, back: Bags) -> Tensor:
    sums: Tensor = _Sums.apply(rows, *there, *back)  # type: ignore[no-untyped-call]
    return sums


def _summed(rows: Tensor, bags: Bags) -> Tensor:
    if len(bags.rows) == 0:
        return rows.new_zeros(len(bags.starts), rows.shape[1])
    weights = bags.weights.to(rows.dtype)
    return embedding_bag(bags.rows, rows, bags.starts, mode="sum", per_sample_weights=weights)


def _starts(ends: Tensor, size: int) -> Tensor:
    counts = torch.bincount(ends, minlength=size)
    return counts.cumsum(0) - counts


class PackedRows:
    """K rows for the nodes of one kind in B graphs, each padded to the same size L.

    Only the nodes there are. Most of a training batch is padding, which then costs nothing.
    """

    def __init__(self, mask: Tensor) -> None:
        self.present = mask != 0  # (B, L)
        self._graphs, self._size = mask.shape
        self._place = self.present.flatten().nonzero().squeeze(1)  # (K,)
        self._number = self.present.flatten().cumsum(0) - 1
        graph, row = self._place // self._size, torch.arange(len(self._place), device=mask.device)
        one = torch.ones(len(row), device=mask.device)
        self._links = PackedLinks(row, graph, (len(row), self._graphs), (one, one))
        self._graph = graph

    def number(self, flat: Tensor) -> Tensor:
        """Rows of nodes given by b L + their place in graph b; rows of padding do not matter."""
        return self._number[flat]

    def pack(self, padded: Tensor) -> Tensor:
        """(K, ...) rows of (B, L, ...)."""
        return padded.flatten(0, 1).index_select(0, self._place)

    def unpack(self, rows: Tensor) -> Tensor:
        """(B, L, F) of (K, F) rows; what stands in padding does not matter."""
        flat = rows.new_zeros(self._graphs * self._size, rows.shape[1])
        return flat.index_copy(0, self._place, rows).view(self._graphs, self._size, -1)

    def total(self, rows: Tensor) -> Tensor:
        """(B, F) sums of the rows of every graph, without padding."""
        return self._links.to_second(rows)

    def spread(self, graphs: Tensor) -> Tensor:
        """(K, F) of (B, F): each row gets what its graph has."""
        if not graphs.is_floating_point():
            return graphs.index_select(0, self._graph)
        return self._links.to_first(graphs)


class PaddedRows:
    """All nodes, with the padding: no shape depends on values, so that programs can be exported."""

    def __init__(self, mask: Tensor) -> None:
        self.present = mask != 0
        self._graphs, self._size = mask.shape

    def number(self, flat: Tensor) -> Tensor:
        return flat

    def pack(self, padded: Tensor) -> Tensor:
        return padded.flatten(0, 1)

    def unpack(self, rows: Tensor) -> Tensor:
        return rows.view(self._graphs, self._size, rows.shape[1])

    def total(self, rows: Tensor) -> Tensor:
        mask = self.present.to(rows.dtype).unsqueeze(1)  # (B, 1, L)
        return torch.bmm(mask, self.unpack(rows)).squeeze(1)

    def spread(self, graphs: Tensor) -> Tensor:
        wide = graphs.unsqueeze(1).expand(-1, self._size, -1)
        return wide.reshape(self._graphs * self._size, graphs.shape[1])


Rows = PackedRows | PaddedRows


def mean(rows: Rows, states: Tensor) -> Tensor:
    """(B, F) means of the rows of every graph, 0 where there are none."""
    count = rows.present.sum(dim=1, keepdim=True).clamp(min=1)
    return rows.total(states) / count.to(states.dtype)


SPEED = 10  # column of a server: of its GPU type
_FITS = 0.999  # of a gang; its size and free GPUs come as rounded fractions
_INTERFERENCE = {"cluster": (7,), "rack": (7,), "server": (6,), "job": (18, 19, 20)}


class ClusterBatch:
    """Racks, servers, running and pending jobs of B observations, and the edges between them.

    Rows of jobs are the pending ones, then the running ones. Beside `job_features`, `job_types` is
    what the observation says about a job and the GPU types at once (T types, in this order):

    | | |
    |---|---|
    | T | free GPUs of the type / the job's, at most 2, over 2 |
    | T | the same for the server of the type with the most free GPUs |
    | 1 | speed on the fastest type with enough free GPUs, 0 where there is none |
    | 1 | speed on the GPUs that it holds, the mean over them; 0 while it waits |
    | 1 | the first minus the second |
    | 1 | 1: it runs |

    Columns about GPU types, here and in all features, are put in order: those of the fastest type
    among the servers first, types of which there is none last, by the mean speed of the jobs. So a
    policy does not depend on the order in which a cluster names its types.

    Args:
        observation: every array of the observation, stacked: (B, ...).
        packed: whether padding is left out; False for programs that are to be exported.
        use_interference: whether features about interference are more than 0.
    """

    def __init__(
        self, observation: Mapping[str, Tensor], *, packed: bool, use_interference: bool
    ) -> None:
        def keep(kind: str, features: Tensor) -> Tensor:
            if use_interference:
                return features
            kept = features.new_ones(features.shape[-1])
            kept[list(_INTERFERENCE[kind])] = 0.0
            return features * kept

        kind: Callable[[Tensor], Rows] = PackedRows if packed else PaddedRows
        self.pending, self.running, self.servers, shares = (
            kind(observation[f"{name}_mask"]) for name in ("pending", "running", "server", "share")
        )
        self.cluster_features = keep("cluster", observation["cluster_features"])
        self.rack_features = keep("rack", observation["rack_features"])  # (B, R, 8)
        self.rack_present = observation["rack_mask"] != 0
        servers = keep("server", observation["server_features"])
        pending = self.pending.pack(keep("job", observation["pending_features"]))
        running = self.running.pack(keep("job", observation["running_features"]))
        order = self._order_of_types(servers, pending, running)
        servers = _arranged(
            servers, order.unsqueeze(1).expand(-1, servers.shape[1], -1), SERVER_BASE
        )
        pending = _arranged(pending, self.pending.spread(order), JOB_BASE)
        running = _arranged(running, self.running.spread(order), JOB_BASE)
        self.server_features = self.servers.pack(servers)
        self.peer_features = observation.get("peer_features")
        if self.peer_features is not None:
            peers = order.unsqueeze(1).expand(-1, self.peer_features.shape[1], -1)
            self.peer_features = _arranged(self.peer_features, peers, PEER_BASE)
            if "sent_features" in observation:
                seen = (self.peer_features, observation["sent_features"])
                self.peer_features = torch.cat(seen, dim=-1)
        self.num_pending = pending.shape[0]
        self._connect(observation, shares, running.shape[0], packed)
        types = servers[..., SERVER_BASE:]
        free = servers[..., 2:3] * types  # (B, N, T)
        self.rack_types = _shares(self.to_racks(self.servers.pack(free)))  # (B, R, T)
        whole = servers[..., 0].sum(1, keepdim=True).clamp(min=1e-6)
        self.free_types = free.sum(1) / whole  # (B, T) of all GPUs
        self.all_types = (servers[..., 0:1] * types).sum(1) / whole
        self.cluster_types = _shares(free.sum(1))
        columns = slice(JOB_BASE, JOB_BASE + types.shape[-1])
        self.pending_speeds = pending[:, columns]
        most = free.amax(1)
        self.job_features = torch.cat([pending, running])
        waiting = self._about_types(self.pending, pending, most, None)
        held = self.to_running(self.server_features[:, SERVER_BASE:])  # (K, T) share of its GPUs
        present = (held * running[:, columns]).sum(1, keepdim=True)
        at_work = self._about_types(self.running, running, most, present)
        self.job_types = torch.cat([waiting, at_work])

    def to_servers(self, running: Tensor) -> Tensor:
        """(K, F) means over the GPUs of every server of the rows of the jobs on them."""
        return self._shares.to_second(running)

    def to_running(self, servers: Tensor) -> Tensor:
        """(K, F) means over the GPUs of every running job of the rows of their servers."""
        return self._shares.to_first(servers)

    def to_racks(self, servers: Tensor) -> Tensor:
        """(B, R, F) means over the servers of every rack."""
        graphs, racks = self.rack_features.shape[:2]
        return self._racks.to_second(servers).view(graphs, racks, servers.shape[1])

    def from_racks(self, racks: Tensor) -> Tensor:
        """(K, F): each server gets what its rack has, from (B, R, F)."""
        return self._racks.to_first(racks.flatten(0, 1))

    def _connect(
        self, observation: Mapping[str, Tensor], shares: Rows, running: int, packed: bool
    ) -> None:
        graphs, slots = self.running.present.shape
        nodes, racks = self.servers.present.shape[1], self.rack_features.shape[1]
        graph = torch.arange(graphs, device=self.rack_features.device).unsqueeze(1)
        ends = observation["share_index"].long()
        job, server = (
            rows.number(shares.pack(graph * size + ends[:, end].clamp(max=size - 1)))
            for end, rows, size in ((0, self.running, slots), (1, self.servers, nodes))
        )
        part = shares.pack(observation["share_features"])  # of the server's GPUs, of the job's
        sizes = running, self.server_features.shape[0]
        weights = part[:, 1], part[:, 0]
        self._shares: PackedLinks | PaddedLinks
        self._racks: PackedLinks | PaddedLinks
        rack = observation["server_rack"].long()
        own = torch.arange(sizes[1], device=rack.device)
        whose = self.servers.pack(graph * racks + rack.clamp(max=racks - 1))
        rack_sizes = sizes[1], graphs * racks
        real = self.servers.pack((rack < racks) & self.servers.present)
        count = torch.zeros(graphs * racks, dtype=part.dtype, device=rack.device)
        count = count.scatter_add(0, whose, real.to(part.dtype))
        inverse = 1.0 / count.clamp(min=1.0).gather(0, whose)  # of the servers of its rack
        rack_weights = torch.ones_like(inverse), inverse
        if packed:
            self._shares = PackedLinks(job, server, sizes, weights)
            self._racks = PackedLinks(own, whose, rack_sizes, rack_weights)
        else:
            there = shares.pack(shares.present)
            self._shares = PaddedLinks(job, server, sizes, weights, there)
            self._racks = PaddedLinks(own, whose, rack_sizes, rack_weights, real)

    def _order_of_types(self, servers: Tensor, pending: Tensor, running: Tensor) -> Tensor:
        """(B, T) the types in the order of their columns."""
        types = servers[..., SERVER_BASE:]
        speed = (servers[..., SPEED : SPEED + 1] * types).amax(1)
        columns = slice(JOB_BASE, JOB_BASE + types.shape[2])
        jobs = self.pending.total(pending[:, columns]) + self.running.total(running[:, columns])
        most = jobs.amax(1, keepdim=True).clamp(min=1e-6)
        key = torch.where(types.amax(1) > 0, 1.0 + speed, jobs / most / 2.0)
        return key.argsort(dim=1, descending=True)

    def _about_types(
        self, rows: Rows, jobs: Tensor, most: Tensor, present: Tensor | None
    ) -> Tensor:
        """(K, 2 T + 4) what stands in the table of the class."""
        types = most.shape[1]
        room = rows.spread(self.free_types) / jobs[:, 1:2].clamp(min=1e-5)
        on_one = rows.spread(most) / jobs[:, 0:1].clamp(min=1e-5)
        speeds = jobs[:, JOB_BASE : JOB_BASE + types]
        best = (speeds * (room >= _FITS)).amax(1, keepdim=True)
        runs = torch.zeros_like(best) if present is None else torch.ones_like(best)
        present = torch.zeros_like(best) if present is None else present
        ratios = [ratio.clamp(max=2.0) / 2.0 for ratio in (room, on_one)]
        return torch.cat([*ratios, best, present, best - present, runs], dim=1)


def job_types_width(types: int) -> int:
    """Columns of `ClusterBatch.job_types`."""
    return 2 * types + 4


def _arranged(features: Tensor, order: Tensor, first: int) -> Tensor:
    """Features with the columns about types, from `first` on, in the order of each row."""
    last = first + order.shape[-1]
    ordered = features[..., first:last].gather(-1, order)
    return torch.cat([features[..., :first], ordered, features[..., last:]], dim=-1)


def _shares(amounts: Tensor) -> Tensor:
    return amounts / amounts.sum(-1, keepdim=True).clamp(min=1e-6)
