"""The exact planner's programs for CP-SAT, and the process that solves them."""
