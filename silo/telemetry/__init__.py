"""Traces and metrics by OpenTelemetry, for silos and clients that are told to produce them.

```python
Client.connect(..., telemetry=Telemetry())  # reports to the application's own providers
```
Nothing of the runtime imports this package unless telemetry is on.
"""

from silo.telemetry.telemetry import Telemetry

__all__ = ["Telemetry"]
