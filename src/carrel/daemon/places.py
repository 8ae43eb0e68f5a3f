"""Where the daemon's own files are. Imported by every client: cheap."""

from __future__ import annotations

import os

FOLDER = "daemon"
SOCKET = "socket"
LOCK = "lock"
LOG = "log"
ADDRESS = "address"
MAX_ADDRESS = 107
"""Bytes that fit into the address of a Unix socket."""


def folder(data: str | os.PathLike[str]) -> str:
    return os.path.join(os.fspath(data), FOLDER)


def socket(data: str | os.PathLike[str]) -> str:
    return os.path.join(folder(data), SOCKET)


def lock(data: str | os.PathLike[str]) -> str:
    return os.path.join(folder(data), LOCK)


def log(data: str | os.PathLike[str]) -> str:
    return os.path.join(folder(data), LOG)


def address(data: str | os.PathLike[str]) -> str:
    """A file: where the daemon listens on TCP, if it does."""
    return os.path.join(folder(data), ADDRESS)


def make_folder(data: str | os.PathLike[str]) -> str:
    """Nobody else's: what is in it is the daemon's and its user's."""
    os.makedirs(data, mode=0o711, exist_ok=True)
    path = folder(data)
    os.makedirs(path, mode=0o700, exist_ok=True)
    os.chmod(path, 0o700)
    return path
