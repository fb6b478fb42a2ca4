"""What planners of a step share: the best so far, groups of operators, and lower bounds."""
