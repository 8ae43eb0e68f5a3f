"""What people use today to give a command a private copy of a project, behind walls."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench import sandbox_rivals
from bench.projects import git
from bench.sandbox_rivals import BWRAP, plain_rivals

WORKTREE_BWRAP = "git worktree add + bwrap"
SRT = "srt, without a copy"


@dataclass(frozen=True)
class Rival:
    """`run` makes the copy and runs the command in it; `clean` takes it away, untimed.
    Both raise `RivalFailed` and RuntimeError."""

    name: str
    run: Callable[[], None]
    clean: Callable[[], None]

    def works(self) -> str:
        """Empty, or why it cannot be measured."""
        try:
            self.run()
            self.clean()
        except (OSError, RuntimeError, sandbox_rivals.RivalFailed) as error:
            return str(error)
        return ""


def folder_rivals(project: Path, place: Path) -> tuple[list[Rival], dict[str, str]]:
    """Those that are installed, and for the others why not."""
    copy = place / "worktree"
    commands = {rival.name: rival for rival in plain_rivals(copy)}
    found, missing = [], {}
    if BWRAP in commands:
        found.append(_worktree(project, copy, commands[BWRAP]))
    else:
        missing[WORKTREE_BWRAP] = "bubblewrap is not installed"
    if shutil.which("srt") is not None:
        srt = sandbox_rivals.Rival(
            SRT, ("srt", "-c", sandbox_rivals.SCRIPT), {"TMPDIR": str(place)}
        )
        found.append(Rival(SRT, srt.run, _nothing))
    else:
        missing["srt"] = "not installed"
    return found, missing


def _worktree(project: Path, copy: Path, bwrap: sandbox_rivals.Rival) -> Rival:
    def run() -> None:
        git("-C", str(project), "worktree", "add", "--quiet", "--detach", str(copy))
        bwrap.run()

    def clean() -> None:
        git("-C", str(project), "worktree", "remove", "--force", str(copy))

    return Rival(WORKTREE_BWRAP, run, clean)


def of_containers(rivals: list[sandbox_rivals.Rival]) -> list[Rival]:
    """A new container each time; it is removed as part of the run."""
    return [Rival(one.name, one.run, _nothing) for one in rivals if one.name.endswith(" run")]


def _nothing() -> None:
    """Such a rival leaves nothing."""
