"""Have several planners plan one problem, one after the other in one process, each of them warm.

python -m experiments.race graph=gpt2 topology=dgx1 +agent@entrants.dp=dp \
    +agent@entrants.long=local_search +budgets_s.long=60
"""

from experiments.run.app import main_of

main = main_of("race", __name__)
