"""The program that runs a driver inside a sandbox: `python -I -m carrel.agents.drive`.

A turn may be shorter than the start and the end of an interpreter, so both are cut short:
nothing of what is loaded for good is looked at as garbage, and at the end the process goes
without taking all of it down.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys


def main() -> int:
    gc.disable()
    from carrel.agents import driver_process

    return driver_process.main()


def leave(code: int) -> None:
    """Ends the process. All that a driver started has ended; only output may still be buffered."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    leave(main())
