"""Run a suite: a grid of runs that is taken up again where it was killed, and one report of them.

python -m experiments.benchmark suite=placement_quick   # planners on many problems
python -m experiments.benchmark suite=seeds +suite.job.budget_s=30 # the main job, several seeds
python -m experiments.benchmark suite=study             # learned cluster schedulers, from nothing
python -m experiments.benchmark resume=<run folder>     # goes on where a run was killed
"""

from experiments.run.app import main_of

main = main_of("benchmark", __name__)
