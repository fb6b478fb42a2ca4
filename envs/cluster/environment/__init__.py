"""`meshwright/Cluster-v0` and `ClusterParallel-v0`: which job runs when, and where."""
