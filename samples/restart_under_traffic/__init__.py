"""The only silo of a cluster is killed and comes back, while its grain is called, or not: how long until it answers?

`python -m samples.restart_under_traffic` starts silo processes of its own, and prints what happens when.
"""

from samples.restart_under_traffic.counter import Counter

__all__ = ["Counter"]
