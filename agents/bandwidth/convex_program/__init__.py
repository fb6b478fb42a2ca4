"""The inside of the exact planner of rates: the step as longest paths, cuts, and their proof."""
