"""A soak: `python -m tests.soak [--minutes 10] [--clients 20] [--seed N]`.

Ends with 0 when nothing was lost and nothing is left, else with 1.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path

from carrel.daemon import control
from carrel.launcher.client import Launcher
from tests.folders import mounts_below, remove_folder
from tests.load import reality
from tests.load.clearing import end_everything
from tests.soak.soak import Plan, Report, Soak


def main() -> int:
    parser = argparse.ArgumentParser(description="Many clients on one daemon, for a while.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    given = parser.parse_args()
    plan = Plan(given.minutes * 60, given.clients, given.seed, flat_memory=given.minutes >= 2)
    print(f"{given.clients} clients for {given.minutes:g} minutes, seed {given.seed}", flush=True)
    try:
        with soaked() as (data, project):
            report = asyncio.run(Soak(data, project, plan).run())
    except BaseException:
        traceback.print_exc()
        print("FAILED")
        return 1
    show(report)
    print("nothing was lost, and nothing is left")
    return 0


@contextlib.contextmanager
def soaked() -> Iterator[tuple[Path, Path]]:
    """A daemon on a folder of its own, and a place for a project. Afterwards both are gone;
    AssertionError when something of them is left."""
    place = Path(tempfile.mkdtemp(prefix="carrel-soak-"))
    data = place / "data"
    try:
        place.chmod(0o711)
        control.start(data)
        yield data, place / "project"
        control.stop(data)
        assert reality.traces(data, set())["folders"] == set()
        Launcher(data).shutdown(force=True)
        assert mounts_below(place) == []
        assert reality.running_in(place) == []
    finally:
        end_everything(data)
        remove_folder(place)


def show(report: Report) -> None:
    for figures in report.figures:
        print(figures)
    counts = ", ".join(f"{name} {count}" for name, count in sorted(report.ledger.counts.items()))
    print(f"{counts}; {len(report.ledger.runs)} commands, {report.events} events")


if __name__ == "__main__":
    sys.exit(main())
