"""Hybrid plans: stages of layers on groups of devices, replicated and sharded, step by step."""
