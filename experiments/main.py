"""The main job: capture, learn, compare with every baseline, export, verify.

make run                                  # BERT-large on two V100 and two P100
python -m experiments.main graph=gpt2 topology=single_v100 budget_s=30
python -m experiments.main env=cluster_mixed  # a cluster's scheduler, on generated traces

With env=cluster_mixed, or another cluster of several schedulers, `--help` beside it has the keys.
"""

from experiments.command_line import main_of

main = main_of("main", __name__)
