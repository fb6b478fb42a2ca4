"""Pictures of steps, clusters, traces and learning."""
