"""Export what was found: a trained policy as a checkpoint folder, a hybrid plan as a torch program.

python -m experiments.export run=outputs/train/2026-01-31_12-00-00-000000
python -m experiments.export plan=plan.json to=pytorch

The policy is that of the run's best exam, and is verified. With `plan=<file>` the folder holds
which layers each stage has, the order of actions of every rank, and a training script.
"""

from experiments.run.app import main_of

main = main_of("export", __name__)
