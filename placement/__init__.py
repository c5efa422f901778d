"""Where a new activation lands: the policy seam, the shipped policies, and decisions that explain themselves."""

if __name__ != "silo.placement":  # a second copy of every class would follow
    raise ImportError(f"import this package as 'silo.placement', not as {__name__!r}")
