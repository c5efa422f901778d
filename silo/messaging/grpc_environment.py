"""Switches of the gRPC core that it reads from the environment when it is loaded: import this before `grpc`.

Without the event engine a message is answered in about two thirds of the time: a bare echo on loopback took 150 to
210 us instead of 275 with asyncio, and 140 to 150 instead of 200 to 210 with uvloop (grpcio 1.85.3). Whoever sets the
variable decides for themselves.
"""

from __future__ import annotations

import os

EXPERIMENTS = "-event_engine_client,-event_engine_listener"

os.environ.setdefault("GRPC_EXPERIMENTS", EXPERIMENTS)
# Silos never fork and go on; without this each subprocess that is started makes grpc complain of its own threads.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
