"""The bridge with all that it needs loaded, for a process that is forked for each.

What is imported only when it is first used is imported here, too.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

LATE = (
    "anyio._backends._asyncio",
    "concurrent.futures.thread",
    "uvicorn.lifespan.on",
    "uvicorn.loops.asyncio",
    "uvicorn.protocols.http.auto",
)

if TYPE_CHECKING:
    from carrel.instances.inside import bridge
else:  # by its file: the package may not be shown in the sandbox
    _SPEC = importlib.util.spec_from_file_location("bridge", Path(__file__).with_name("bridge.py"))
    bridge = sys.modules["bridge"] = importlib.util.module_from_spec(_SPEC)
    _SPEC.loader.exec_module(bridge)

bridge.sessions()
for name in LATE:
    with contextlib.suppress(ImportError):
        importlib.import_module(name)

main = bridge.main
