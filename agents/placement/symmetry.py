"""Devices that can change places without a difference."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from envs.step.problem import StepProblem

IntArray = NDArray[np.int64]


def interchangeable(problem: StepProblem, a: int, b: int) -> bool:
    """Whether swapping devices `a` and `b` changes nothing but names, those of ports included."""
    topology = problem.topology
    swap = np.arange(topology.num_devices)
    swap[[a, b]] = b, a
    pairs = np.ix_(swap, swap)
    if not (
        np.array_equal(problem.op_seconds[:, a], problem.op_seconds[:, b])
        and problem.capacity[a] == problem.capacity[b]
        and np.array_equal(topology.link_class[pairs], topology.link_class)
    ):
        return False
    # the ports may be renamed, send and receive ports alike and by one renaming of them all
    old = np.concatenate([topology.send_port.ravel(), topology.receive_port.ravel()])
    new = np.concatenate([topology.send_port[pairs].ravel(), topology.receive_port[pairs].ravel()])
    renamed = len(np.unique(np.stack([old, new]), axis=1).T)
    return renamed == len(np.unique(old)) == len(np.unique(new))


def device_classes(problem: StepProblem) -> list[list[int]]:
    """Classes of interchangeable devices, ascending; every device is in one of them.

    Any permutation within a class is made of swaps that change nothing, so it changes nothing.
    """
    classes: list[list[int]] = []
    for device in range(problem.topology.num_devices):
        for known in classes:
            if interchangeable(problem, known[0], device):
                known.append(device)
                break
        else:
            classes.append([device])
    return classes


def canonical(device: IntArray, classes: list[list[int]]) -> IntArray:
    """`device` (N,) with the devices of every class renamed in the order of their first use."""
    new = np.arange(1 + max(max(members) for members in classes))
    order = list(dict.fromkeys(device.tolist()))
    for members in classes:
        used = [d for d in order if d in members]
        unused = [d for d in members if d not in used]
        new[[*used, *unused]] = members
    return np.asarray(new[device], dtype=np.int64)
