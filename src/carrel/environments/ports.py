"""Ports, as Dockerfiles and dev containers write them."""

from __future__ import annotations

import re

from carrel.environments.malformed import Malformed

MAX_RANGE = 100
"""A range is listed port by port; a wider one is a mistake, or says nothing."""
_PORT = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?(?:/([A-Za-z]+))?", re.ASCII)
_PROTOCOLS = ("tcp", "udp", "sctp")


def parse_ports(text: str) -> list[tuple[int, str]]:
    """`80`, `53/udp`, `8000-8010/tcp`. Raises `Malformed`."""
    match = _PORT.fullmatch(text)
    if not match:
        raise Malformed(f"{text[:80]!r} is not a port.")
    first = int(match.group(1))
    last = int(match.group(2) or first)
    protocol = (match.group(3) or "tcp").lower()
    if not 0 < first <= last < 1 << 16 or protocol not in _PROTOCOLS:
        raise Malformed(f"{text[:80]!r} is not a port.")
    if last - first >= MAX_RANGE:
        raise Malformed(f"{text!r} is a range of more than {MAX_RANGE} ports.")
    return [(number, protocol) for number in range(first, last + 1)]
