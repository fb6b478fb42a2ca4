"""Draw anybody's plan (a Gantt chart and a trace for Perfetto), or the curves of training runs.

python -m experiments.plot plan=plan.json graph=bert_large topology=mixed_v100_p100
python -m experiments.plot runs=[<run folder>,<run folder>]     # schedulers, over several seeds
"""

from experiments.run.app import main_of

main = main_of("plot", __name__)
