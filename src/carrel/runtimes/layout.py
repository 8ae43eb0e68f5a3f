"""The folders of one sandbox, and what the sandbox calls them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from carrel.domain.trees import Owner

WORKSPACE = "/workspace"
HOME = "/home/user"
HUB = "/run/carrel"
INSIDE_ID = 1000
"""Every sandbox with a user namespace shows its own user as this one."""


@dataclass(frozen=True)
class SandboxFolders:
    """Below a space's folder."""

    space: Path

    @property
    def home(self) -> Path:
        return self.space / "home"

    @property
    def tmp(self) -> Path:
        return self.space / "tmp"

    @property
    def hub(self) -> Path:
        """Shown to the sandbox, which may use what is in it, and put nothing there."""
        return self.space / "hub"

    @property
    def runs(self) -> Path:
        return self.space / "runs"

    def run(self, run_id: str) -> Path:
        return self.runs / run_id

    def make(self, owner: Owner) -> None:
        """Idempotent. Home and /tmp are the sandbox's user's, the runs are ours."""
        self.runs.mkdir(mode=0o700, exist_ok=True)
        self.hub.mkdir(mode=0o755, exist_ok=True)
        for folder, mode in ((self.home, 0o700), (self.tmp, 0o1777)):
            try:
                folder.mkdir(mode=0o700)
            except FileExistsError:
                continue
            os.chmod(folder, mode)
            if os.geteuid() == 0:
                os.chown(folder, owner.uid, owner.gid)
