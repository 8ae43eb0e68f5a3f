"""What a daemon loads and prepares on its way, so that a process that is forked from here has it
already."""

import encodings.idna
import encodings.utf_8_sig
import gc

import uvicorn.lifespan.off
import uvloop

import carrel.daemon.main
import carrel.daemon.server
import tests.daemon.forking
from carrel.interfaces.http import operations

__all__ = ["carrel", "encodings", "tests", "uvicorn", "uvloop"]

operations.routes({})
# No collection in a process that is forked looks at these again, nor copies them.
gc.collect()
gc.freeze()
