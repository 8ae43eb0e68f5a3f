"""The entry of the `carrel` program.

A plain command line is run straight away; everything that needs explaining goes through
click, which costs more to import than most commands take.
"""

from __future__ import annotations

import os
import sys

from carrel.cli.call import VerbCall
from carrel.cli.commands import find_command, load
from carrel.cli.output import flush
from carrel.cli.parser import parse_program, parse_verb

COMPLETE_VARIABLE = "_CARREL_COMPLETE"


def main() -> int:
    """Runs the program. Nothing of ours needs Python's tidying up at the end, which takes as
    long as the daemon takes to answer."""
    os._exit(run(sys.argv[1:]))


def run(words: list[str]) -> int:
    """Gives the exit code, when all that was written has gone out."""
    try:
        call = None if COMPLETE_VARIABLE in os.environ else _plain(words)
        if call is not None:
            code = call.run()
        else:
            from carrel.cli.program import run_program

            code = run_program(words)
        flush()
        return code
    except BaseException as error:
        from carrel.cli.errors import report

        return report(error, "--json" in words)


def _plain(words: list[str]) -> VerbCall | None:
    program = parse_program(words)
    found = program and find_command(program[1])
    if not program or not found:
        return None
    name, rest = found
    verb = load(name)
    values = parse_verb(verb, rest)
    return None if values is None else VerbCall(verb, {**program[0], **values})


if __name__ == "__main__":
    sys.exit(main())
