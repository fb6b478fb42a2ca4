"""A cluster of jobs: nodes, workloads, interference, the simulator and the environments."""
