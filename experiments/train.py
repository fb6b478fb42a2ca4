"""Train policies: to place any graph, to place one, to share the network, to schedule.

python -m experiments.train graph=bert_large topology=mixed_v100_p100 training.budget_s=600
python -m experiments.train model=placer graph=bert_large training.budget_s=60
python -m experiments.train env=bandwidth_toy agent=ppo_bandwidth model=channels baselines=bandwidth
python -m experiments.train +experiment=cluster_known training.budget_s=600
python -m experiments.train env=problems training.budget_s=600
python -m experiments.train labels=<dataset folder> problems=2000
python -m experiments.train resume=<run folder>

Without `model=` the shipped placement policy learns further, with `model=placer` one from nothing.
With `model=interference` the predictor of slow-downs is trained, with `model=durations` that of the
work jobs still need, with `model=priority` what counts beside that, with `model=rule` the numbers
of a rule, with `env=cluster_mixed`, or another cluster, its schedulers, with `env=allocation` who
gives workers to malleable jobs, with `model=gains` by which gains GADGET does; `labels=<folder>`
labels problems to imitate. With `--help` beside these there is an example, and the keys.
`conf/experiment` holds recipes for schedulers; the second line of each is its command.
"""

from experiments.run.app import main_of

main = main_of("train", __name__)
