"""Agents without a daemon: in the caller's own process, or started by it."""

from __future__ import annotations

import os
from pathlib import Path

from carrel.agents.library import Library
from carrel.agents.programs import Locator
from carrel.agents.registry import Registry
from carrel.client.address import data_folder


def open_library(data: str | os.PathLike[str] | None = None) -> Library:
    """Finds the programs that `carrel agents install` has put into the data folder (None: the usual
    one, or as CARREL_DATA says), else those on PATH. Reads no stored key."""
    folder = os.fspath(data) if data is not None else data_folder(os.environ)
    return Library(Registry(Locator(Path(os.path.abspath(folder), "agents"))))
