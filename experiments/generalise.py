"""Learned schedulers and every policy of their class on windows that nobody has trained on.

python -m experiments.generalise split=itp
python -m experiments.generalise split=philly checkpoints=[runs/0/checkpoint,runs/1/checkpoint]
python -m experiments.generalise conditions=shifted checkpoints=[runs/0/checkpoint] \\
    only=[as_trained,half_the_nodes]

Paired by window: the mean, median and 99th percentile of a learned scheduler's completion times
over those of the baseline that is best on that very window, of the one that is best overall, and
of the best of those that are as published. With conditions=shifted the same checkpoints, trained
and chosen as before, under conditions that they were not trained for, beside the baselines that are
strongest where they were trained. References, policies of this project, stand beside them:

python -m experiments.generalise split=itp +agent@references.migrating_learned=migrating_learned \\
    references.migrating_learned.priority.path=<run folder>/durations
"""

from experiments.run.app import main_of

main = main_of("generalise", __name__)
