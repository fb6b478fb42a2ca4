"""Run plans in torch on this machine: hybrid plans beside the unsplit model, synchronisation too.

python -m experiments.execute plan=plan.json
python -m experiments.execute plan=[1f1b.json,zb_h1.json] layers.width=384 layers.sequence=128
python -m experiments.execute synchronisation=plan.json links=namespaces

The processes of a plan meet over the loopback interface, one thread each. Losses, gradients and the
order of actions are compared with what they should be, the step's time with a list simulation of
the measured actions. With `profile=<file>` the layers alone are measured, for planners to read.

With `synchronisation=<file>` the trees of a plan of `experiments.synchronise` carry real vectors
between processes, in turns with gloo's own all-reduce: over the loopback interface, or in network
namespaces whose links have the rates of the plan's network, beside what is predicted.
"""

from experiments.command_line import main_of

main = main_of("execute", __name__)
