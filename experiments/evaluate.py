"""Evaluate an agent, or re-simulate anybody's plan, on one graph and one topology.

python -m experiments.evaluate agent=heft graph=bert_large topology=mixed_v100_p100 json=true
python -m experiments.evaluate plan=plan.json graph=bert_large topology=mixed_v100_p100

A plan file with bandwidth is simulated through pipes of its rates. With `env=cluster` a trace of
jobs is replayed under a scheduling policy; `env=cluster --help` shows an example and the keys.
"""

from __future__ import annotations

import sys

from experiments.cluster.evaluate_cluster import EvaluateClusterConfig, evaluate_cluster
from experiments.run.app import Variant, main_of
from experiments.step.evaluate_step import EvaluateConfig, evaluate_step

VARIANTS = {"env=cluster": Variant("evaluate_cluster", EvaluateClusterConfig, evaluate_cluster)}


main = main_of("evaluate", EvaluateConfig, evaluate_step, VARIANTS)


if __name__ == "__main__":
    sys.exit(main())
