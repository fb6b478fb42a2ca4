"""A bandwidth plan as shell files for the machines it is for: one applies it, one takes it back.

python -m experiments.enforce plan=plan.json hosts=hosts.yaml graph=bert_base topology=planes_4x1
python -m experiments.enforce plan=plan.json hosts=hosts.yaml backend=ovs ...

docs/network.md says what stands in the hosts file.
"""

from experiments.run.app import main_of

main = main_of("enforce", __name__)
