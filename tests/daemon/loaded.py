"""What a daemon loads on its way, so that a process that is forked from here has it already."""

import uvloop

import carrel.daemon.main
import carrel.daemon.server

__all__ = ["carrel", "uvloop"]
