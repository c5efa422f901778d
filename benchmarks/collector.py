"""Where telemetry goes in the rows that measure it: an OTLP endpoint that takes everything and keeps nothing.

`python -m benchmarks.collector` prints its port, and ends when its standard input does.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

_grpc: Any = grpc  # the published stubs know handlers by their generated classes alone


def _nothing(_request: bytes, _context: object) -> bytes:
    return b""


class TakesAll(grpc.GenericRpcHandler):
    """Answers every call with an empty message, which any answer of OTLP may be."""

    def service(self, handler_call_details: Any) -> Any:
        del handler_call_details
        return _grpc.unary_unary_rpc_method_handler(_nothing)


def main() -> int:
    """Serve until standard input ends."""
    server: Any = _grpc.server(ThreadPoolExecutor(2), handlers=(TakesAll(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    sys.stdin.read()
    server.stop(None).wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
