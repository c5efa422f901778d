"""The placement simulator: what happens to balance and locality when silos come, go and run hot, rule by rule."""
