"""What is where, and who is alive: addresses, the grain directory, membership and leases."""

if __name__ != "silo.directory":  # a second copy of every class would follow
    raise ImportError(f"import this package as 'silo.directory', not as {__name__!r}")
