"""From a config to traces and clusters, splits of traces, and schedulers compared on them."""
