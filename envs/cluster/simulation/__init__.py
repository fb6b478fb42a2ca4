"""Many jobs on a cluster: the simulator, its state, schedules and their metrics."""
