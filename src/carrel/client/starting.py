"""Starting the daemon on demand."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from carrel.client.places import Place


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
        from contextlib import suppress

        from carrel.daemon import control
        from carrel.domain.errors import DaemonRunning

        # Somebody else may have been faster, which is just as well.
        with suppress(DaemonRunning):
            control.start(folder)

    return start
