"""The queue policies, compiled.

`in_order`, `shortest_first` and `attained_service` go with the simulator's state through every
circumstance it knows. `whole_trace` and `shortest_remaining` need nothing but the trace where free
GPUs alone decide: rate 1, no overheads, no failures.
"""
