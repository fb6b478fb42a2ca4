"""Gradients summed over a network by trees: planned, checked, executed, timed, drawn.

python -m experiments.synchronise agent=ring topology=dgx1 bytes=100MB json=true
"""

from experiments.command_line import main_of

main = main_of("synchronise", __name__)
