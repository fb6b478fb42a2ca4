"""In which order coflows and tensors are sent, and what no order can beat."""
