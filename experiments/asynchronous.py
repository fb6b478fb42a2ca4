"""Asynchronous training in virtual time: the time to one loss under every policy, tuned alike.

python -m experiments.asynchronous
python -m experiments.asynchronous workers=[8,128] heterogeneity=[4] policies=[tap,adsp]

Gradients are those of a real model of bytes; `text` is any file.
"""

from experiments.command_line import main_of

main = main_of("asynchronous", __name__)
