"""How short calls become: the repartitioner as shipped, in simulated clusters. `python -m benchmarks.halo`."""
