"""The queue policies, compiled.

`in_order`, `shortest_first` and `attained_service` go with the simulator's state through every
circumstance it knows. `whole_trace*` need nothing but the trace where the number of free GPUs alone
decides: rate 1, no overheads, no failures.
"""
