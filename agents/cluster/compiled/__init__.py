"""Policies compiled with the simulator.

`passes` has the queue policies and goes with the simulator's state through every circumstance it
knows; `joint_choice` and `pairs` choose jobs and places together. `whole_trace*` need nothing but
the trace where the number of free GPUs alone decides: rate 1, no overheads, no failures.
"""
