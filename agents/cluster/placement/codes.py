"""Numbers by which compiled code knows the placement rules."""

COUNT, YARN, HELIOS_CONSOLIDATE, FIRST_FIT, BEST_FIT, RANDOM, SPREAD, LEAST_INTERFERENCE = range(8)


COUNTED = frozenset({COUNT, RANDOM, SPREAD})  # a job fits as soon as enough GPUs are free
PACKED = frozenset({YARN, HELIOS_CONSOLIDATE, FIRST_FIT, BEST_FIT})  # on nodes of equal size
