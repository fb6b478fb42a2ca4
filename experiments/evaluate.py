"""Evaluate an agent, or re-simulate anybody's plan, on one graph and one topology.

python -m experiments.evaluate agent=heft graph=bert_large topology=mixed_v100_p100 json=true
python -m experiments.evaluate plan=plan.json graph=bert_large topology=mixed_v100_p100

A plan file with bandwidth is simulated through pipes of its rates. Other words lead to other jobs:
a trace under one policy or under many, windows of a split or of a regime, flows, coflows. `--help`
beside such a word shows its examples and keys.
"""

from experiments.command_line import main_of

main = main_of("evaluate", __name__)
