"""What daemons and the program load and prepare on their way, so that one that is forked from here
has it already."""

import encodings.idna
import encodings.utf_8_sig
import gc

import uvicorn.lifespan.off
import uvloop

import carrel.cli.main
import carrel.cli.program
import carrel.daemon.main
import carrel.daemon.server
import tests.accounts
import tests.cli.program
import tests.daemon.forking
from carrel.cli.commands import COMMANDS, load
from carrel.interfaces.http import operations

__all__ = ["carrel", "encodings", "tests", "uvicorn", "uvloop"]

operations.routes({})
for name in COMMANDS:
    load(name)
# No collection in a process that is forked looks at these again, nor copies them.
gc.collect()
gc.freeze()
