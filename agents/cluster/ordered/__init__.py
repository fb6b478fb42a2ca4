"""Policies that are an order of priority, compiled for every circumstance the simulator knows.

They decide as `agents.cluster.passes` does; interference, overheads and failing nodes included.
"""
