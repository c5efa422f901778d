"""Grains while they live on this silo: turns, activations, and the catalog of them."""
