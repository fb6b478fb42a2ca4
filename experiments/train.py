"""Train what decides: policies of steps and of clusters, predictors, the numbers of rules.

python -m experiments.train graph=bert_large topology=mixed_v100_p100 training.budget_s=600
python -m experiments.train model=placer graph=bert_large training.budget_s=60
python -m experiments.train env=bandwidth_toy agent=ppo_bandwidth model=channels baselines=bandwidth
python -m experiments.train +experiment=cluster_known training.budget_s=600
python -m experiments.train task=problems training.budget_s=600
python -m experiments.train task=environment task.id=CartPole-v1
python -m experiments.train labels=<dataset folder> problems=2000
python -m experiments.train resume=<run folder>

`task=` says what is trained; so does an `env=` or `model=` that only one task takes. Without it a
policy is trained on one problem: the shipped one learns further, with `model=placer` one learns
from nothing.
`labels=<folder>` labels problems to imitate. `conf/experiment` holds recipes for schedulers; the
second line of each is its command.
"""

from experiments.command_line import main_of

main = main_of("train", __name__)
