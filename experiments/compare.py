"""Replay a trace on a cluster under many scheduling policies: evaluate env=policies.

python -m experiments.compare trace.path=jobs.csv trace.format=itp placement=least_interference
python -m experiments.compare +agent@agents.checkpoint=checkpoint interference=analytic \\
    'cluster.gpu_types=[V100,P100,T4]'
"""

from experiments.command_line import main_of

main = main_of("compare", __name__)
