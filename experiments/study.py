"""Run a study: problems x solvers x budgets x seeds, taken up again where it was killed.

python -m experiments.study study=placement_quick             # planners on a few problems
python -m experiments.study study=mine.yaml workers=2         # your own, in the form of conf/study
python -m experiments.study study=placement_quick graph.batch=64  # a word of every cell's command
python -m experiments.study resume=<run folder>               # goes on where a run was killed

The run folder receives cells.parquet, values.parquet and curves.parquet, and the tables made of
them as table.md, table.tex, table.csv and study.html.
"""

from experiments.command_line import main_of

main = main_of("study", __name__)
