"""Rules and tables: every server is reached from every NIC, and links are shared by their rates."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from recorded_shell import ANSWERS, calls
from three_servers import LINK, NETWORK, Pipes, plans, rates

from experiments.papers.enforcement.backends import PolicyRouting, Script
from tests.refusal import refusal

pytestmark = pytest.mark.slow


def routed(pipes: Pipes, table: int = 700, priority: int = 800) -> Script:
    """What server 0 does for a plan."""
    script = Script("", "")
    plan = plans(rates(NETWORK, pipes))[0]
    PolicyRouting(table, priority).complete(script, plan, ["nic0", "nic1"])
    return script


def commands(pipes: Pipes) -> list[str]:
    lines = [line for line in routed(pipes).apply if line[:1] not in ("", "#")]
    assert all(shlex.join(shlex.split(line)) == line for line in lines)
    return lines


def test_a_socket_bound_to_a_nic_reaches_every_server_through_it() -> None:
    assert commands({(0, 1): (LINK, LINK)})[:6] == [
        "ip -4 route replace 10.255.0.2/32 via 10.0.0.2 dev nic0 table 700",
        "ip -4 route replace 10.255.0.3/32 via 10.0.0.3 dev nic0 table 700",
        "ip -4 rule add from 10.0.0.1/32 priority 800 table 700",
        "ip -4 route replace 10.255.0.2/32 via 10.1.0.2 dev nic1 table 701",
        "ip -4 route replace 10.255.0.3/32 via 10.1.0.3 dev nic1 table 701",
        "ip -4 rule add from 10.1.0.1/32 priority 801 table 701",
    ]


@pytest.mark.parametrize(
    ("given", "hops"),
    [
        ((LINK, LINK), ["nic0 weight 1", "nic1 weight 1"]),
        ((LINK, LINK / 4), ["nic0 weight 4", "nic1 weight 1"]),
        ((LINK / 3, LINK / 2), ["nic0 weight 171", "nic1 weight 256"]),
        ((LINK, LINK / 500), ["nic0 weight 256", "nic1 weight 1"]),
        ((LINK, 1.0), ["nic0 weight 1"]),
        ((0.0, LINK), ["nic1 weight 1"]),
        ((0.0, 0.0), ["nic0 weight 1"]),
    ],
)
def test_other_sockets_share_the_links_by_their_rates(
    given: tuple[float, float], hops: list[str]
) -> None:
    lines = commands({(0, 1): given})
    wanted = " ".join(f"nexthop via 10.{hop[3]}.0.2 dev {hop}" for hop in hops)
    assert lines[6] == f"ip -4 route replace 10.255.0.2/32 src 10.255.0.1 table 702 {wanted}"
    assert lines[8] == "ip -4 rule add priority 802 table 702"


def test_the_hash_of_ports_is_asked_for_where_a_pipe_has_two_links() -> None:
    two, one = ("\n".join(routed({(0, 1): (1e3, rate)}).checks) for rate in (1e3, 0.0))
    assert "fib_multipath_hash_policy" in two
    assert "fib_multipath_hash_policy" not in one
    for text in (one, two):
        for need in ("to 10.255.0.1/32", "dev nic0 to 10.0.0.1/32", "conf/nic1/rp_filter"):
            assert need in text


def test_the_clean_up_names_every_rule_and_table() -> None:
    text = "\n".join(routed({}).clean)
    for number in range(3):
        assert f"rule del priority {800 + number} table {700 + number}" in text
        assert f"route flush table {700 + number}" in text


@pytest.mark.parametrize(
    ("all_nics", "nic", "refused"),
    [(0, 0, False), (0, 1, True), (1, 0, True), (1, 1, True), (1, 2, False), (2, 1, False)],
)
def test_a_strict_filter_of_reverse_paths_is_refused(
    tmp_path: Path, all_nics: int, nic: int, refused: bool
) -> None:
    text = "refuse() { exit 1; }\n" + "\n".join(routed({}).checks)
    answers = {**ANSWERS, "cat /proc/sys/net/ipv4/conf": f"{all_nics}\n{nic}"}
    calls(tmp_path, text, answers, expected=int(refused))


@pytest.mark.parametrize(
    ("table", "priority", "key"),
    [
        (0, 1, "first_table"), (254, 1, "first_table"), (2**31, 1, "first_table"),
        (4000, 0, "first_priority"), (4000, 32_766, "first_priority"),
        # and those that three more run into
        (252, 4000, "first_table"), (2**31 - 2, 4000, "first_table"),
        (4000, 32_764, "first_priority"),
    ],
)  # fmt: skip
def test_numbers_that_are_the_kernels_own_are_refused(table: int, priority: int, key: str) -> None:
    with refusal(key):
        routed({}, table, priority)
