"""One rank of a gloo all-reduce, which reads from standard input how many bytes to reduce.

python ring_worker.py <rank> <ranks> <address of rank 0> <port> <interface,interface,...>

Every line `<bytes>` sums a tensor of that size over all ranks, one part on each interface, and
prints the seconds it took.
"""

from __future__ import annotations

import os
import sys
import time

rank, ranks, address, port, interfaces = sys.argv[1:6]
os.environ["GLOO_SOCKET_IFNAME"] = interfaces  # one gloo context each; operations take turns

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

torch.set_num_threads(1)
dist.init_process_group(
    "gloo", init_method=f"tcp://{address}:{port}", rank=int(rank), world_size=int(ranks)
)
parts = len(interfaces.split(","))
total = float(sum(range(1, int(ranks) + 1)))
dist.barrier()
print("ready", flush=True)
for line in sys.stdin:
    tensor = torch.full((int(line) // 4,), float(rank) + 1.0)
    pieces = list(tensor.chunk(parts))
    for _ in range(parts):  # one on each context, so that the next operation is the first's turn
        dist.barrier()
    start = time.perf_counter()
    works = [dist.all_reduce(piece, async_op=True) for piece in pieces]
    for work in works:
        work.wait()
    seconds = time.perf_counter() - start
    assert bool((tensor == total).all())
    print(seconds, flush=True)
dist.destroy_process_group()
