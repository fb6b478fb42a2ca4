"""What is claimed, by others and here, and what was measured: report of=claims.

python -m experiments.claims
python -m experiments.claims rerun=[moirai_example,flow_times]
"""

from experiments.command_line import main_of

main = main_of("claims", __name__)
