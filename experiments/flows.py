"""Completion times of flows that share the links of parking lots max-min fairly.

python -m experiments.flows input=flows.csv.gz json=true
"""

from experiments.run.app import main_of

main = main_of("flows", __name__)
