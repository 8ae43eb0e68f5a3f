"""Programs that run in the sandbox of an instance, each one file that an interpreter is given by
its path: see the README."""

from pathlib import Path

HERE = Path(__file__).resolve().parent
GATE = HERE / "gate.py"
LISTEN = HERE / "listen.py"
STDIO = HERE / "stdio.py"
UVICORN_SHIM = HERE / "uvicorn_shim.py"
BRIDGE = HERE / "bridge.py"
