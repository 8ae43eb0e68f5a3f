"""One desk for each recorded case, and the place where the recording goes."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.agents.recording.programs import Desk
from tests.agents.recording.scrubbing import Scrubber
from tests.agents.standins import Standin, serving

STREAMS = Path(__file__).resolve().parents[1] / "streams"


@dataclass(frozen=True)
class Place:
    """Where a program is recorded: its desk, the model's stand-in, and the files to be."""

    desk: Desk
    standin: Standin
    frontend: str
    case: str
    scrub: Scrubber

    def keep(self, lines: Sequence[str], beside: Mapping[str, object]) -> None:
        """The ids are numbered as they appear in what the program was asked, then answered."""
        folder = STREAMS / self.frontend
        folder.mkdir(parents=True, exist_ok=True)
        about = self.scrub(json.dumps(beside, indent=2, ensure_ascii=False))
        (folder / f"{self.case}.json").write_text(f"{about}\n")
        said = "".join(f"{line}\n" for line in lines)
        (folder / f"{self.case}.jsonl").write_text(self.scrub(said))


@contextlib.contextmanager
def place(frontend: str, case: str) -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="carrel-stream-") as folder, serving() as standin:
        desk = Desk(Path(folder, "desk"), standin.url).make()
        yield Place(desk, standin, frontend, case, Scrubber(desk))
