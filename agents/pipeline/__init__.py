"""The order of a pipeline's passes: published schedules, a zero-bubble search, the optimum."""
