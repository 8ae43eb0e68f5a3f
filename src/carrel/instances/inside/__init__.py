"""Programs that run in the sandbox of an instance, each one file that an interpreter is given by
its path: see the README of the room."""

from pathlib import Path

HERE = Path(__file__).parent
GATE = HERE / "gate.py"
LISTEN = HERE / "listen.py"
STDIO = HERE / "stdio.py"
FURNISH = HERE / "furnish.py"
UVICORN_SHIM = HERE / "uvicorn_shim.py"
BRIDGE = HERE / "bridge.py"
WARM_BRIDGE = HERE / "bridge_warm.py"
