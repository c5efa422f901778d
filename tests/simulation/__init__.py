"""Whole clusters in one process under virtual time, seeded: `python -m tests.simulation --seeds 200`."""
