"""Evaluate an agent, or re-simulate anybody's plan, on one graph and one topology.

python -m experiments.evaluate agent=heft graph=bert_large topology=mixed_v100_p100 json=true
python -m experiments.evaluate plan=plan.json graph=bert_large topology=mixed_v100_p100

A plan file with bandwidth is simulated through pipes of its rates. With `env=cluster` a trace of
jobs is replayed under a scheduling policy; `env=cluster --help` shows an example and the keys.
"""

from experiments.run.app import main_of

main = main_of("evaluate", __name__)
