"""Endpoints as text: `host:port`, with an IPv6 address in brackets."""

from __future__ import annotations

import ipaddress


def split_endpoint(text: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[v6]:port`; raises ValueError."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{text!r} is not an endpoint of the form host:port")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        ipaddress.IPv6Address(host)
    elif ":" in host:
        raise ValueError(f"{text!r} is not an endpoint: write an IPv6 address in brackets, [::1]:7000")
    return host, int(port)


def endpoint_of(host: str, port: int) -> str:
    """The two as one text, which `split_endpoint` takes apart."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether the host is reached from this machine alone. Names are not looked up: all but localhost may be public."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_wildcard(host: str) -> bool:
    """Whether the host stands for all addresses of this machine, and so for none that others could dial."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
