"""What does not hold for an instance here, said in sentences."""

from __future__ import annotations

from carrel.domain.instances import Instance
from carrel.domain.runtimes import Capabilities, Network


def notes(instance: Instance, can: Capabilities) -> tuple[str, ...]:
    found: list[str] = []
    if not can.confines:
        found += can.uncovered
    private = can.private_network and instance.network is Network.NONE
    if instance.port and not private and not instance.has_token:
        found.append(
            "It checks no token and listens on the machine's own network: every user of this"
            " machine can reach it."
        )
    if instance.network is Network.OPEN:
        found.append("It can reach the network.")
    return tuple(found)
