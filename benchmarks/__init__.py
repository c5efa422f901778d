"""Benchmarks: what the performance claims rest on, beside floors measured in the same run. `python -m benchmarks`."""
