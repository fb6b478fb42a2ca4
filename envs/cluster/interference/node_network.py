"""The links that the jobs of a cluster communicate over."""

from __future__ import annotations

from dataclasses import dataclass

from envs.errors import InputError
from envs.hardware.fabric import LinkSpec
from envs.network.collectives.ring import RingAllReduce
from envs.network.collectives.schedule import AlphaBeta


@dataclass(frozen=True)
class NodeNetwork:
    """Three levels of links: inside a node, between nodes of a rack, between racks.

    A ring all-reduce of p GPUs crosses the boundary of every node and rack once in each direction,
    so its narrowest link sets its pace: 2 (p - 1) latency + 2 (p - 1) / p S / B seconds with that
    of the widest level it spans (`RingAllReduce`). How many nodes a ring spans does not matter.

    Args:
        inside: between two neighbouring GPUs of a node.
        rack: between two nodes of a rack, at the node's network port.
        core: between two racks, as seen by one job.
        pcie: between a node's processors and its GPUs, shared by all of them.
        inside_is_pcie: whether `inside` is that shared PCIe, rather than links of its own.

    Raises:
        InputError: a wider level is faster than a narrower one.
    """

    inside: LinkSpec
    rack: LinkSpec
    core: LinkSpec
    pcie: LinkSpec
    inside_is_pcie: bool

    def __post_init__(self) -> None:
        levels = {"inside": self.inside, "rack": self.rack, "core": self.core}
        for (near, a), (far, b) in zip(
            list(levels.items()), list(levels.items())[1:], strict=False
        ):
            if b.bandwidth > a.bandwidth or b.latency < a.latency:
                raise InputError(f"is faster than {near}", field=f"network.{far}")

    @classmethod
    def of(
        cls, inside: object, rack: object, core: object, pcie: object, inside_is_pcie: bool
    ) -> NodeNetwork:
        """A network from sections `{medium, bandwidth, latency}` of a configuration.

        Raises:
            InputError: naming the key that is wrong.
        """
        return cls(
            inside=LinkSpec.parse(inside, key="network.inside"),
            rack=LinkSpec.parse(rack, key="network.rack"),
            core=LinkSpec.parse(core, key="network.core"),
            pcie=LinkSpec.parse(pcie, key="network.pcie"),
            inside_is_pcie=inside_is_pcie,
        )

    def all_reduce_seconds(self, gpus: int, size: float) -> tuple[float, float, float]:
        """Seconds on one node, on one rack, on several racks; 0 for a single GPU."""
        ring = RingAllReduce()
        a, b, c = (
            ring.seconds(gpus, size, AlphaBeta(link.latency, link.bandwidth))
            for link in (self.inside, self.rack, self.core)
        )
        return a, b, c
