"""How and when a grain moves: participants, the payload, the handover protocol and its outcomes."""

if __name__ != "silo.migration":  # a second copy of every class would follow
    raise ImportError(f"import this package as 'silo.migration', not as {__name__!r}")
