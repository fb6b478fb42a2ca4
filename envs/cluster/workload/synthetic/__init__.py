"""Traces by seed, with the statistics of a real one.

`fit(trace)` makes parameters of a trace, `generate(parameters, jobs, seed)` a trace of parameters.
"""
