"""Small clusters in one process: what grains, moves and placement promise, on both stands."""
