"""Ask one planner for one plan: the fastest step, the best partition, the best bandwidth.

python -m experiments.plan agent=heft graph=bert_large topology=mixed_v100_p100 json=true
python -m experiments.plan agent=dp problem=max_load problem.contiguous=true graph=<graph file>
python -m experiments.plan agent=dapple problem=pipeline graph=llama_7b topology=a100_4x8
python -m experiments.plan agent=convex problem=bandwidth problem.plan=plan.json topology=planes_4x1
python -m experiments.plan problem=schedule name=zb_v ranks=4 micro_batches=8 memory_limit=half
"""

from experiments.command_line import main_of

main = main_of("plan", __name__)
