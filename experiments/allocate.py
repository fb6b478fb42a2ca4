"""Who gives how many workers to malleable jobs, beside what no plan can be worth more than.

python -m experiments.allocate agent=gadget speed=parameter_server
python -m experiments.allocate problem=trace trace.path=cluster04.csv.gz trace.format=itp json=true
python -m experiments.allocate study=300

With `study=<instances>` every planner stands beside as many proved optima.
"""

from experiments.command_line import main_of

main = main_of("allocate", __name__)
