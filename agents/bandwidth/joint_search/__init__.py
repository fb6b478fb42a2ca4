"""The inside of the joint planner: rates as a response to a placement, and rates in the MILP."""
