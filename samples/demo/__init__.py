"""The demonstration: a cluster under load is moved about, restarted and killed, and every call is accounted for."""

from samples.rolling.meter import Meter

__all__ = ["Meter"]
