"""A bandwidth plan as shell files, two for each server: one applies it, one takes it back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from agents.bandwidth.enforcement.hosts import Hosts
from agents.bandwidth.enforcement.script import EnforcementFile, Script
from agents.bandwidth.enforcement.server_plan import ServerPlan, server_plans
from envs.hardware.network import Network
from envs.step.plans import BandwidthAllocation


@runtime_checkable
class Backend(Protocol):
    """What turns the plan of a server into commands."""

    def script(self, plan: ServerPlan) -> Script:
        """What the server runs."""


def enforcement_files(
    allocation: BandwidthAllocation,
    network: Network,
    hosts: Hosts,
    backend: Backend,
    notes: Sequence[str] = (),
) -> list[EnforcementFile]:
    """`<server>.apply.sh` and `<server>.clean.sh` of every server, in the order of the servers.

    The same arguments give the same files. The rates of `allocation` are bytes/s on the line, as
    the capacities of `network` are; `agents.bandwidth.enforcement.framing` says what of them
    reaches a program.

    Args:
        allocation: the rate of every channel.
        network: the channels.
        hosts: the machines behind the servers of `network`.
        backend: makes the commands.
        notes: further lines of comment at the head of every file.

    Raises:
        InputError: the plan is not feasible, or cannot be enforced on these machines.
    """
    plans = server_plans(allocation, network, hosts)
    return [file for plan in plans for file in backend.script(plan).files(plan.host.name, notes)]
