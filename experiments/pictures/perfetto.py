"""A simulated step in the Trace Event Format that Perfetto and chrome://tracing read."""

from __future__ import annotations

from envs.graphs.op_graph import Kind, Phase
from envs.step.problem import StepProblem
from envs.step.timeline import Timeline
from envs.units import MICROSECOND

DEVICES, PORTS = 1, 2  # process ids

Event = dict[str, object]


def trace_document(problem: StepProblem, timeline: Timeline) -> dict[str, object]:
    """Devices as the threads of one process, ports as those of a second; times in microseconds.

    A transfer stands on the thread of its send port and on that of its receive port.
    """
    topology = problem.topology
    devices = [f"{device.name} ({device.spec.name})" for device in topology.devices]
    events = [
        *_names(DEVICES, "devices", devices),
        *_names(PORTS, "ports", list(topology.port_names)),
        *_operators(problem, timeline),
        *_transfers(problem, timeline),
    ]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _names(process: int, name: str, threads: list[str]) -> list[Event]:
    events: list[Event] = [
        {"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}}
    ]
    for thread, label in enumerate(threads):
        place = {"pid": process, "tid": thread}
        events.append({"ph": "M", "name": "thread_name", **place, "args": {"name": label}})
        events.append(
            {"ph": "M", "name": "thread_sort_index", **place, "args": {"sort_index": thread}}
        )
    return events


def _operators(problem: StepProblem, timeline: Timeline) -> list[Event]:
    graph = problem.graph
    return [
        {
            "ph": "X",
            "name": graph.op_names[op],
            "cat": Phase(graph.phase[op]).name.lower(),
            "pid": DEVICES,
            "tid": int(timeline.device[op]),
            "ts": float(timeline.op_start[op]) / MICROSECOND,
            "dur": float(timeline.op_finish[op] - timeline.op_start[op]) / MICROSECOND,
            "args": {
                "micro_batch": int(graph.micro_batch[op]),
                "kind": Kind(graph.kind[op]).name.lower(),
                "flop": float(graph.flop[op]),
            },
        }
        for op in range(graph.num_operators)
    ]


def _transfers(problem: StepProblem, timeline: Timeline) -> list[Event]:
    graph, topology = problem.graph, problem.topology
    events: list[Event] = []
    for index, tensor in enumerate(timeline.transfer_tensor):
        source = int(timeline.transfer_source[index])
        destination = int(timeline.transfer_destination[index])
        start, finish = timeline.transfer_start[index], timeline.transfer_finish[index]
        producer = graph.op_names[graph.producer[tensor]]
        for ports in (topology.send_port, topology.receive_port):
            events.append(
                {
                    "ph": "X",
                    "name": f"{producer} -> {topology.devices[destination].name}",
                    "cat": "transfer",
                    "pid": PORTS,
                    "tid": int(ports[source, destination]),
                    "ts": float(start) / MICROSECOND,
                    "dur": float(finish - start) / MICROSECOND,
                    "args": {
                        "bytes": float(graph.tensor_bytes[tensor]),
                        "source": topology.devices[source].name,
                        "destination": topology.devices[destination].name,
                    },
                }
            )
    return events
