"""What people do instead of a request: a folder by hand, the same agent in it, and a look at what
changed. Nothing confines that agent, nobody tells what it does, and nothing is written down."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.own_requests import RequestFailed, Took, Wanted
from bench.projects import git
from carrel.agents.programs import Locator
from carrel.agents.registry import Registry
from carrel.domain.agents import Prepared
from carrel.domain.turns import AgentSetup, TurnRequest

AGENT = "scripted"
TURN_S = 60.0
ALL_S = 900.0
_SCRIPT = """\
set -eu
mkdir "$1/work"
cd "$1/work"
{agent} < ../first > ../said
find . -type f > ../files
"""


@dataclass(frozen=True)
class ByHand:
    """`place` is for the folders; `project` is a git checkout, or nothing."""

    place: Path
    project: Path | None = None

    def one(self, wanted: Wanted) -> Took:
        folder = self.place / wanted.path.replace("/", "-")
        begun = time.perf_counter()
        folder.mkdir(parents=True)
        work = self._copy(folder / "work")
        agent_begun = time.perf_counter()
        self._agent(wanted, folder)
        agent_s = time.perf_counter() - agent_begun
        found = self._changed(work)
        whole_s = time.perf_counter() - begun
        if found != [wanted.path]:
            raise RequestFailed(f"by hand: {wanted.path} made {found}")
        self._clean(folder)
        return Took(whole_s, agent_s)

    def _copy(self, work: Path) -> Path:
        if self.project is None:
            work.mkdir()
        else:
            git("-C", str(self.project), "worktree", "add", "--quiet", "--detach", str(work))
        return work

    def _agent(self, wanted: Wanted, folder: Path) -> None:
        prepared = prepare(wanted, folder)
        env = {**os.environ, **prepared.env}
        done = subprocess.run(
            prepared.argv,
            cwd=folder / "work",
            env=env,
            input=prepared.first,
            capture_output=True,
            timeout=TURN_S,
            check=False,
        )
        if done.returncode != 0:
            raise RequestFailed(f"by hand: {done.stderr[-500:].decode(errors='replace')}")

    def _changed(self, work: Path) -> list[str]:
        if self.project is None:
            return [str(path.relative_to(work)) for path in work.rglob("*") if path.is_file()]
        git("-C", str(work), "add", "--all")
        return git("-C", str(work), "diff", "--cached", "--name-only", "HEAD").split()

    def _clean(self, folder: Path) -> None:
        if self.project is not None:
            work = str(folder / "work")
            git("-C", str(self.project), "worktree", "remove", "--force", work)
        shutil.rmtree(folder)


def prepare(wanted: Wanted, folder: Path) -> Prepared:
    """The agent's command, in the way that a turn starts it. Without walls it would ask before it
    does anything, so it is told that there are some."""
    setup = AgentSetup(str(folder / "work"), str(folder / "state"), "", confined=True)
    request = TurnRequest(AGENT, wanted.instructions, session_id="raw", run_id="raw")
    return Registry(Locator(folder)).get(AGENT).prepare(request, setup)


def by_xargs(place: Path, wanted: Sequence[Wanted], at_once: int) -> float:
    """Seconds for all of them, so many at the same time; each in a folder of its own."""
    folders = [_ready(place / str(number), one) for number, one in enumerate(wanted)]
    script = place / "one.sh"
    script.write_text(_SCRIPT.format(agent=shlex.join(prepare(wanted[0], folders[0]).argv)))
    words = ["xargs", "-P", str(at_once), "-n", "1", "sh", str(script)]
    begun = time.perf_counter()
    given = "\n".join(map(str, folders))
    subprocess.run(words, input=given, text=True, check=True, timeout=ALL_S)
    took_s = time.perf_counter() - begun
    for folder, one in zip(folders, wanted, strict=True):
        if (folder / "files").read_text().split() != [f"./{one.path}"]:
            raise RequestFailed(f"by hand: {one.path} is not there")
    shutil.rmtree(place)
    return took_s


def _ready(folder: Path, wanted: Wanted) -> Path:
    (folder / "state").mkdir(parents=True)
    (folder / "first").write_bytes(prepare(wanted, folder).first)
    return folder
