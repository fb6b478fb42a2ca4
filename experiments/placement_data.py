"""Make a dataset to train a placement policy on: problems drawn at random, labelled by a teacher.

python -m experiments.placement_data folder=data problems=2000 budget_s=1
python -m experiments.placement_data folder=better agent@teacher=learned
"""

from experiments.run.app import main_of

main = main_of("placement_data", __name__)
