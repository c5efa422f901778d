"""The demonstration: a cluster under load is moved about, restarted and killed, and every call is accounted for."""

from samples.demo.grains import Meter

__all__ = ["Meter"]
