"""Whole simulations in one compiled loop, for clusters where nothing but the queue decides.

Jobs run at rate 1, preemption is free, nodes never fail. Times are whole seconds. At each instant
completions come first, then arrivals in the order of the trace, then one scheduling pass.
"""
