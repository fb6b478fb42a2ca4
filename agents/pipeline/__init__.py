"""In which order the ranks of a pipeline run: published schedules, a zero-bubble search, the optimum."""
