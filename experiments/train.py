"""Train policies: to place any graph, to place one, to share the network, to schedule.

python -m experiments.train graph=bert_large topology=mixed_v100_p100 training.budget_s=600
python -m experiments.train model=placer graph=bert_large training.budget_s=60
python -m experiments.train env=bandwidth_toy agent=ppo_bandwidth model=channels baselines=bandwidth
python -m experiments.train +experiment=cluster_known training.budget_s=600
python -m experiments.train env=problems training.budget_s=600
python -m experiments.train resume=<run folder>

Without `model=` the shipped placement policy learns further, with `model=placer` one from nothing.
With `model=interference` the predictor of slow-downs is trained, with `model=durations` that of the
work jobs still need, with `model=priority` what counts beside that, with `model=rule` the numbers
of a rule, with `env=cluster_mixed`, or another cluster, its schedulers, with `env=allocation` who
gives workers to malleable jobs, with `model=gains` by which gains GADGET does; with `--help` beside
these there is an example, and the keys.
`conf/experiment` holds recipes for schedulers; the second line of each is its command.
"""

from __future__ import annotations

import sys

from experiments.learning.train_allocation import TrainAllocationConfig, train_allocation
from experiments.learning.train_cluster import TrainClusterConfig, train_cluster
from experiments.learning.train_decisions import TrainDecisionsConfig, train_decisions
from experiments.learning.train_durations import TrainDurationsConfig, train_durations
from experiments.learning.train_gains import TrainGainsConfig, train_gains
from experiments.learning.train_interference import TrainInterferenceConfig, train_interference
from experiments.learning.train_priority import TrainPriorityConfig, train_priority
from experiments.learning.train_problems import TrainProblemsConfig, train_problems
from experiments.learning.train_rule import TrainRuleConfig, train_rule
from experiments.learning.train_step import TrainConfig, train_step
from experiments.run.app import Variant, main_of

VARIANTS = {
    "model=interference": Variant(
        "train_interference", TrainInterferenceConfig, train_interference
    ),
    "model=durations": Variant("train_durations", TrainDurationsConfig, train_durations),
    "model=priority": Variant("train_priority", TrainPriorityConfig, train_priority),
    "model=rule": Variant("train_rule", TrainRuleConfig, train_rule),
    "model=gains": Variant("train_gains", TrainGainsConfig, train_gains),
    "env=allocation*": Variant("train_allocation", TrainAllocationConfig, train_allocation),
    "env=decisions": Variant("train_decisions", TrainDecisionsConfig, train_decisions),
    "env=*problems": Variant("train_problems", TrainProblemsConfig, train_problems),
    "env=cluster*": Variant("train_cluster", TrainClusterConfig, train_cluster),
}


main = main_of("train", TrainConfig, train_step, VARIANTS)


if __name__ == "__main__":
    sys.exit(main())
