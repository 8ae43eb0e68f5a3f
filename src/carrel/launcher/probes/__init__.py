"""The proof of isolation, run inside a sandbox: see `carrel.launcher.probes.probe`."""

from carrel.launcher.probes.probe import run_probe

__all__ = ["run_probe"]
