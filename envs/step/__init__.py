"""One training step: the problem, plans, the simulators, orders and schedules."""
