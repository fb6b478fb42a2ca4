"""Planners of a step: a file for each algorithm, a folder for what is inside the larger ones.

| folder | inside of |
|---|---|
| `constraint_program` | `cp_sat` |
| `integer_program` | `fusion_milp`, `milp` |
| `list_scheduling` | `list_planners` |
| `neighbourhood` | `local_search` |
"""
