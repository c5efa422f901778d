"""Whole clusters in one process under virtual time, with seeded load and faults: `python -m tests.simulation --seeds 200`."""
