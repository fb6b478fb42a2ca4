"""The `tc` commands of a plan: rates, filters, and what they leave out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded_shell import calls
from three_servers import LINK, NETWORK, files, machines, network_of, plans, rates


@pytest.mark.slow
def test_a_server_runs_these_commands(tmp_path: Path) -> None:
    texts = files("tc", plans(rates(NETWORK, {(0, 1): (750_000.5, 0.0)})))
    made = [" ".join(words) for words in calls(tmp_path, texts["node0.apply.sh"])]
    assert [line for line in made if line.startswith("tc") and "nic0" in line] == [
        "tc qdisc del dev nic0 root handle 4d57:",
        "tc qdisc replace dev nic0 root handle 4d57: htb default ffff",
        "tc class add dev nic0 parent 4d57: classid 4d57:ffff htb rate 240000bit ceil 240000bit "
        "burst 65536 cburst 65536 prio 0 quantum 60000",
        "tc filter add dev nic0 parent 4d57: protocol ip prio 1 u32 match u8 0x05 0x0f at 0 "
        "match ip protocol 6 0xff match u16 0x0000 0xff80 at 2 flowid 4d57:ffff",
        "tc class add dev nic0 parent 4d57: classid 4d57:2 htb rate 6000000bit ceil 6000000bit "
        "burst 65536 cburst 65536 prio 1 quantum 60000",
        *(
            f"tc filter add dev nic0 parent 4d57: protocol ip prio 2 u32 match ip dst {address}/32 "
            "flowid 4d57:2"
            for address in ("10.255.0.2", "10.0.0.2", "10.1.0.2")
        ),
    ]
    classes = [line for line in made if "class add dev nic1" in line]
    assert len(classes) == 1  # the plan gives nothing to that link
    assert "4d57:ffff" in classes[0]
    undone = [" ".join(words) for words in calls(tmp_path, texts["node0.clean.sh"])]
    assert "tc qdisc del dev nic1 root handle 4d57:" in undone
    assert not [line for line in undone if "add" in line or "replace" in line]


@given(st.lists(st.floats(0, LINK / 2), min_size=12, max_size=12), st.integers(0, 100))
def test_classes_keep_to_the_plan_and_to_the_link(values: list[float], overhead: int) -> None:
    hosts = machines(overhead)
    texts, kernel = files("tc", plans(np.array(values), hosts=hosts)), hosts.framing.kernel_rate
    for source in range(3):
        lines = texts[f"node{source}.apply.sh"].splitlines()
        for plane in range(2):
            rest, *own = [x for x in lines if f"class add dev nic{plane} " in x]
            found = {x.split("classid 4d57:")[1].split()[0]: bits(x) for x in own}
            wanted = {}
            for destination in range(3):
                for channel in NETWORK.channels_between(source, destination)[plane : plane + 1]:
                    rate = kernel(values[channel])
                    if rate >= 1:
                        wanted[f"{destination + 1:x}"] = rate * 8
            assert found.keys() == wanted.keys()
            assert all(0 <= wanted[key] - found[key] < 8.001 for key in wanted)
            assert sum(found.values()) <= kernel(LINK) * 8 * (1 + 1e-9)
            assert bits(rest) == int(int(kernel(LINK)) * 8 * 0.03)


def bits(line: str) -> int:
    rate = line.split(" rate ")[1].split("bit", maxsplit=1)[0]
    assert f"ceil {rate}bit" in line
    return int(rate)


def test_fast_classes_may_catch_up_on_a_late_timer() -> None:
    fast = network_of(3.125e9)
    text = files("tc", plans(rates(fast, {(0, 1): (3.125e9, 0.0)}), fast))["node0.apply.sh"]
    assert "rate 25000000000bit ceil 25000000000bit burst 6250000 cburst 6250000" in text
