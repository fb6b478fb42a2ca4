"""`Joint-v0`: a placer and one bandwidth allocator per server decide a training step together."""
