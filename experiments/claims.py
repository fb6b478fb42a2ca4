"""What is claimed, by others and here, and what was measured: report of=claims.

python -m experiments.claims
python -m experiments.claims rerun=[moirai_example,flow_times]
"""

from experiments.run.app import main_of

main = main_of("claims", __name__)
