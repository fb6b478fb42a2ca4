"""One step: training of placement, bandwidth and joint policies on one problem."""
