"""Export what was found: a trained policy, a hybrid plan as a torch program, bandwidth as scripts.

python -m experiments.export run=outputs/train/2026-01-31_12-00-00-000000
python -m experiments.export plan=hybrid_plan.json to=pytorch
python -m experiments.export plan=plan.json hosts=hosts.yaml graph=bert_base topology=planes_4x1

The run trained whole plans or schedulers of a cluster. The policy is that of its best evaluation,
and is verified. A hybrid plan becomes a folder with the layers of each stage, the order of actions
of every rank, and a training script. With `hosts=<file>` a bandwidth plan becomes scripts for tc or
Open vSwitch.
"""

from experiments.command_line import main_of

main = main_of("export", __name__)
