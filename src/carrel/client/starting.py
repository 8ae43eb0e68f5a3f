"""Starting the daemon on demand."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from carrel.client.places import Place

TRIES = 3
"""One may meet a daemon that is just ending; hardly two in a row."""


def starter(
    place: Place, allowed: bool = True, env: Mapping[str, str] | None = None
) -> Callable[[], None] | None:
    """What starts the daemon of a data folder; None when it is not ours to start, or the
    caller or CARREL_NO_START forbids it."""
    env = os.environ if env is None else env
    if not allowed or not place.data or env.get("CARREL_NO_START"):
        return None
    folder = place.data

    def start() -> None:
        from carrel.daemon import control
        from carrel.domain.errors import DaemonError, DaemonRunning, DaemonUnavailable

        for left in reversed(range(TRIES)):
            try:
                control.start(folder)
            except DaemonRunning:
                # Somebody else was faster, which is just as well.
                return
            except DaemonUnavailable:
                raise
            except DaemonError:
                # The one that had the folder ended while we waited for it.
                if not left:
                    raise
            else:
                return

    return start
