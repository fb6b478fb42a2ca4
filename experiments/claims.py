"""What is claimed, by others and here, and what was measured: one table, and its rows run again.

python -m experiments.claims
python -m experiments.claims rerun=[moirai_example,flow_times]

The claims are rows of conf/claim_table.yaml. The run folder receives claims.md, claims.tex and
claims.html.
"""

from experiments.run.app import main_of

main = main_of("claims", __name__)
