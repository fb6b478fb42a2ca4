"""Benchmark suites: which plans are asked for, and what is said of the answers."""
