"""One page of several runs: tables with intervals and bounds, figures, and what made each number.

python -m experiments.report <run folder> <run folder>
python -m experiments.report runs=[<run folder>,<run folder>] title='Two planners'
python -m experiments.report plan=plan.json graph=bert_large topology=mixed_v100_p100
python -m experiments.report curves=[<run folder>,<run folder>]

The run folder receives report.html, which needs no network, and the same tables as report.md and
report.tex. A study brings its own tables; other runs are compared by command, seeds of one config
together. With `plan=<file>` a plan is drawn, with `curves=[...]` the curves of several trainings.
"""

from experiments.command_line import main_of

main = main_of("report", __name__)
