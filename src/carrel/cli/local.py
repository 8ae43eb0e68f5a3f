"""What concerns the daemon of this machine only."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.domain.errors import MessageInvalid


def own_data(call: Call) -> str:
    """The data folder whose daemon is meant. `MessageInvalid` when it is somebody else's."""
    place = call.place
    if not place.data:
        raise MessageInvalid(
            f"The daemon at {place} is not this machine's to start and stop.",
            hint="Unset CARREL_URL, or name a data folder: carrel --data FOLDER up",
        )
    return place.data
