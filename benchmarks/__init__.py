"""Measurements: each module answers one question, run as `python -m benchmarks.NAME`."""
