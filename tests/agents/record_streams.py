"""Records what the real programs of agents write, for tests of what reads it.

    .venv/bin/python -m tests.agents.record_streams [frontend [case …]]

Each case becomes `streams/<frontend>/<case>.jsonl`, what the program wrote, and `<case>.json`:
its arguments, its exit code, what it complained about, and what it was sent. The programs are
those that `make setup` installs; models are stand-ins, and nothing leaves the machine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping

from tests.agents.recording import acp, pi
from tests.agents.recording.commands import COMMANDS
from tests.agents.recording.programs import missing

Record = Callable[[str], None]


def frontends() -> Mapping[str, tuple[Record, Iterable[str]]]:
    """By name: how a case is recorded, and which there are."""
    commands = {one.name: (one.record, one.cases) for one in COMMANDS}
    adapters = {one.name: (one.record, acp.CASES) for one in acp.ADAPTERS}
    return {**commands, pi.NAME: (pi.record, pi.CASES), **adapters}


def main(arguments: list[str]) -> None:
    if why := missing():
        sys.exit(why)
    known = frontends()
    for frontend in arguments[:1] or known:
        record, cases = known[frontend]
        for case in arguments[1:] or cases:
            print(frontend, case, flush=True)
            record(case)


if __name__ == "__main__":
    main(sys.argv[1:])
