"""Where the hub is: in a space, of a data folder, or at an address. Imports next to nothing."""

from __future__ import annotations

import os

from carrel.client.places import Place, find_place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

SOCKET = "hub.sock"
"""Beside the daemon's own socket in the data folder."""
INSIDE = "CARREL_HUB"
"""In a space this names the socket through which one is that space."""
PATH = "/v1/hub"
"""Where the API has the hub, as a WebSocket."""


class HubPlace:
    """`lines`: a socket of the hub's own, with a line for each envelope; else a WebSocket of
    the daemon's API. `inside`: whoever comes through it is a space's agent."""

    __slots__ = ("inside", "lines", "place")

    def __init__(self, place: Place, *, lines: bool, inside: bool = False) -> None:
        self.place = place
        self.lines = lines
        self.inside = inside


def find_hub(
    env: Mapping[str, str] | None = None,
    *,
    data: str = "",
    socket: str = "",
    url: str = "",
    token: str = "",
) -> HubPlace:
    """What is said first counts: a socket of the hub, a URL, a data folder; then CARREL_HUB;
    then as `find_place`. `MessageInvalid` for a bad URL."""
    env = os.environ if env is None else env
    inside = "" if socket or url or data else env.get(INSIDE, "")
    if socket or inside:
        path = os.path.abspath(socket or inside)
        return HubPlace(Place(socket=path), lines=True, inside=bool(inside))
    place = find_place(env, data=data, url=url, token=token)
    if not place.data:
        return HubPlace(place, lines=False)
    own = Place(socket=f"{os.path.dirname(place.socket)}/{SOCKET}", data=place.data)
    return HubPlace(own, lines=True)
