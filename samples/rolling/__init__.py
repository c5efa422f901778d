"""A rolling restart under load: each silo of a cluster is stopped and started again while its grains are called.

`python -m samples.rolling` starts silo processes of its own, and says what the callers have noticed.
"""

from samples.rolling.meter import Meter

__all__ = ["Meter"]
