"""A module of one's own, placed on a cluster of one's own.

python examples/place_own_module.py
"""

import torch

import meshwright as mw

module = torch.nn.TransformerEncoderLayer(d_model=1024, nhead=16, dim_feedforward=4096)
graph = mw.capture(module, torch.zeros(128, 4, 1024), micro_batches=4)
servers = [mw.Server("V100-16GB", count=2, nvlink="50GB/s"), mw.Server("P100-16GB", count=2)]
found = mw.plan(graph, mw.topology(servers, network="25Gbps"), "fusion_milp", budget_s=10)
print(found)
found.draw("step.png")
