"""Git's progress lines as steps that we report."""

from __future__ import annotations

import re
from collections.abc import Callable

from carrel.domain.projects import OnProgress, Progress

_STEP = re.compile(r"(?:remote: )?([A-Z][a-z]+(?: [a-z]+)*):\s+\d+% \((\d+)/(\d+)\)(.*)")
_SIZE = re.compile(r", ([\d.]+) ([KMG]i)?B\b|, ([\d.]+) bytes")
_UNITS = {None: 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
_STAGES = {"Receiving objects": "receiving", "Updating files": "checking out"}


def listener(on_progress: OnProgress) -> Callable[[str], None]:
    """Turns lines of git's stderr into reports; other lines are not for it."""

    def hear(line: str) -> None:
        step = parse(line)
        if step is not None:
            on_progress(step)

    return hear


def parse(line: str) -> Progress | None:
    found = _STEP.match(line)
    if not found:
        return None
    size = _SIZE.search(found[4])
    amount = 0
    if size:
        amount = int(float(size[1] or size[3]) * _UNITS[size[2]])
    stage = _STAGES.get(found[1], found[1].lower())
    return Progress(stage, int(found[2]), int(found[3]), amount)
