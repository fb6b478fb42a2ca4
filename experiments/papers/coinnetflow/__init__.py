"""Coflows under an order of priorities, and training jobs that share sums in switches."""
