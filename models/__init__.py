"""What is learned: plain torch and PyG networks, their checkpoints and exports."""
