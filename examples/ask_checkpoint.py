"""An exported scheduler, asked what to do now on a live cluster.

python examples/ask_checkpoint.py
"""

import meshwright as mw

nodes = [{"id": name, "gpu_type": "V100", "num_gpus": 4} for name in ("n0", "n1")]
jobs = [{"id": f"job{k}", "submit_s": 10.0 * k, "num_gpus": 2 + 2 * k} for k in range(3)]
decision = mw.load("unknown_durations").decide({"now_s": 60.0, "nodes": nodes, "jobs": jobs})
print(*decision.actions, sep="\n")
