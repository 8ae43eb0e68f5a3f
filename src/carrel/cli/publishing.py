"""What has landed goes on to a remote, and becomes a pull request: by the person's own git, `gh` or
`glab`, run here and not by the daemon, so that their credentials stay with the person.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from carrel.cli.call import FAILED, VerbCall, invalid
from carrel.domain.errors import LandingRefused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ORIGIN = "origin"
_PLACE = (":", "/")
"""What the address of a repository has, and the name of a remote has not."""


class Publication:
    """What was asked for with a landing, checked before anything lands."""

    def __init__(self, call: VerbCall, space: str) -> None:
        """Raises `LandingRefused` for what cannot work, `MessageInvalid`."""
        self._call = call
        self.remote = call.text("push") or ORIGIN
        if self.remote.startswith("-"):
            raise invalid(f"{self.remote!r} is no remote.", "Give a remote of the project.")
        if not call.place.socket:
            raise LandingRefused(
                "The project is on another machine, and so are its remotes.",
                hint="Leave --push and --pr out, and push there.",
            )
        project = call.ask("spaces.show", space)["project"]
        self.project = str(project["location"])
        _expect("git")
        self.program = self._found() if call.flag("pr") else ""

    def _found(self) -> str:
        """The program for pull requests at that remote."""
        url = self._url()
        wanted = "glab" if "gitlab" in url else "gh"
        other = "gh" if wanted == "glab" else "glab"
        known = "gitlab" in url or "github" in url
        if not known and shutil.which(wanted) is None and shutil.which(other):
            return other
        _expect(wanted)
        return wanted

    def _url(self) -> str:
        words = ["git", "-C", self.project, "remote", "get-url", self.remote]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode and not any(mark in self.remote for mark in _PLACE):
            raise LandingRefused(
                f"The project has no remote {self.remote!r}.",
                hint=f"Add it with `git remote add`, or name another one: {self.project}",
            )
        return done.stdout.strip() or self.remote

    def check(self) -> None:
        self._url()

    def publish(self, landing: dict[str, Any]) -> int:
        """The exit code: the landing stays, whatever becomes of this."""
        branch = str(landing["branch"])
        ref = f"refs/heads/{branch}"
        pushed = self._run("git", "push", self.remote, f"{ref}:{ref}")
        if pushed or not self.program:
            return pushed
        said = subprocess.run(
            ["git", "-C", self.project, "log", "-1", "--format=%s%n%n%b", str(landing["after"])],
            capture_output=True,
            text=True,
            check=False,
        ).stdout
        title, _, body = said.partition("\n")
        about = ["--title", title or branch]
        if self.program == "gh":
            return self._run("gh", "pr", "create", "--head", branch, *about, "--body", body.strip())
        text = body.strip() or title
        words = ("mr", "create", "--yes", "--source-branch", branch, *about, "--description", text)
        return self._run("glab", *words)

    def _run(self, *words: str) -> int:
        out = sys.stderr if self._call.json or words[0] == "git" else sys.stdout
        sys.stdout.flush()
        done = subprocess.run(words, cwd=self.project, stdout=out, env=_environment(), check=False)
        code = done.returncode
        if code:
            self._call.note(
                f"The work has landed, but `{' '.join(words[:3])}` ended with {code}: do it again"
                " yourself, or take the landing back with `carrel undo`."
            )
        return FAILED if code else 0


def _environment() -> dict[str, str]:
    """With git's hooks off: those that are in the project (`core.hooksPath`), or that run what its
    files say, are an agent's own work since it landed, and nobody has looked at that yet."""
    count = os.environ.get("GIT_CONFIG_COUNT", "0")
    at = int(count) if count.isdecimal() else 0
    off = {f"GIT_CONFIG_KEY_{at}": "core.hooksPath", f"GIT_CONFIG_VALUE_{at}": os.devnull}
    return {**os.environ, **off, "GIT_CONFIG_COUNT": str(at + 1)}


def _expect(program: str) -> None:
    if shutil.which(program) is None:
        raise LandingRefused(
            f"`{program}` is not on your PATH.",
            hint="Install it, or leave --push and --pr out: nothing has landed.",
        )
