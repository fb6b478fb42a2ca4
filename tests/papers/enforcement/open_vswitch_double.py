"""Programs that stand in for `ovs-vsctl` and `ovs-ofctl`: the part of them the plans use.

Rows and flows are kept in the file named by OVS_DOUBLE. A row that is not understood is an error.
"""

from __future__ import annotations

import json
import os
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

Database = dict[str, Any]


def database() -> Database:
    """Two ports, each on a bridge of the kernel datapath; a queue of another program."""
    return {
        "Bridge": {f"br{p}": {"datapath_type": "system"} for p in range(2)},
        "Port": {f"nic{p}": {"name": f"nic{p}", "qos": None} for p in range(2)},
        "QoS": {},
        "Queue": {"theirs": {"_uuid": "theirs", "external-ids:meshwright": "other"}},
        "flows": ["br0 cookie=0x1,actions=normal"],
        "made": 0,
    }


def vsctl(data: Database, words: list[str]) -> None:
    names: dict[str, str] = {}
    commands = [list(part) for dashes, part in groupby(words, lambda w: w == "--") if not dashes]
    commands = [[w for w in part if w not in ("--bare",)] for part in commands]
    for part in commands:  # names stand for rows wherever they are made
        if part[0].startswith("--id="):
            data["made"] += 1
            names[part[0].removeprefix("--id=")] = f"row{data['made']}"
    for part in commands:
        if part[0].startswith("--id="):
            name, verb, table, *columns = part
            assert verb == "create"
            row = pairs(columns, names)
            own = names[name.removeprefix("--id=")]
            data[table][own] = {"_uuid": own, **row}
        elif part[0].startswith("--columns="):
            column, verb, table, condition = part
            assert verb == "find"
            key, value = condition.split("=")
            for row in data[table].values():
                if row.get(key) == value:
                    print(row[column.removeprefix("--columns=")])
        elif part[0] == "get":
            print(data[part[1]][part[2]][part[3]])
        elif part[0] == "set":
            data[part[1]][part[2]] |= pairs(part[3:], names)
        elif part[0] == "clear":
            data[part[1]][part[2]][part[3]] = None
        elif part[0] == "destroy":
            used = [row for table in ("Port", "QoS") for row in data[table].values()]
            named = [value for row in used for key, value in row.items() if key != "_uuid"]
            assert part[2] not in named, "is referred to"
            del data[part[1]][part[2]]
        else:
            raise AssertionError(f"unknown command {part}")


def pairs(columns: list[str], names: dict[str, str]) -> dict[str, str]:
    split = [column.split("=", 1) for column in columns]
    return {key: names[value] if value.startswith("@") else value for key, value in split}


def ofctl(data: Database, words: list[str]) -> None:
    verb, bridge, flow = words
    assert bridge in data["Bridge"]
    if verb == "add-flow":
        data["flows"].append(f"{bridge} {flow}")
    else:
        assert verb == "del-flows"
        assert flow.endswith("/-1")
        start = f"{bridge} {flow.removesuffix('/-1')},"
        data["flows"] = [one for one in data["flows"] if not one.startswith(start)]


if __name__ == "__main__":
    path = Path(os.environ["OVS_DOUBLE"])
    kept = json.loads(path.read_text())
    {"ovs-vsctl": vsctl, "ovs-ofctl": ofctl}[Path(sys.argv[1]).name](kept, sys.argv[2:])
    path.write_text(json.dumps(kept))
