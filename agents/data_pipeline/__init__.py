"""Orders of training nodes, partitions of graphs between stores, resources of stages."""
