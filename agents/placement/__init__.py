"""Planners of a step: a file for each algorithm, a folder for what is inside the larger ones.

| folder | inside of |
|---|---|
| `constraint_program` | `cp_sat` |
| `ideals` | `dp` |
| `integer_program` | `fusion_milp`, `milp` |
| `list_scheduling` | `heft`, `etf`, `sct` |
| `neighbourhood` | `local_search` |
| `partitioning` | `partition_search`, and the incumbent and bounds of all partitions |

What all share: `grouping`, `incumbent`, `lower_bound`, `linear_program`, `packing`,
`symmetry`.
"""
