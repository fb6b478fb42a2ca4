"""One page of several runs: tables with intervals and bounds, figures, and what made each number.

python -m experiments.report <run folder> <run folder>
python -m experiments.report runs=[<run folder>,<run folder>] title='Two planners'

The run folder receives report.html, which needs no network, and the same tables as report.md and
report.tex. Runs of one config are taken together, whatever their seeds.
"""

from experiments.run.app import main_of

main = main_of("report", __name__)
