"""What a daemon loads on its way, so that a process that is forked from here has it already."""

import uvloop

import carrel.daemon.assembling
import carrel.daemon.listening
import carrel.daemon.main

__all__ = ["carrel", "uvloop"]
