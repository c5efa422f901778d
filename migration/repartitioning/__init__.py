"""Which grains to move so that those that talk to each other share a silo, and no silo gets more than its share.

Everything here decides and carries nothing out: messages and outcomes in, messages and orders out; time and chance are
arguments. `exchange.py` is what a runtime drives; `strategies.py` makes one.
"""
