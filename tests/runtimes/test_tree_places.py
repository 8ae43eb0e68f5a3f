"""Where a sandbox shows its tree beside /workspace."""

from __future__ import annotations

from pathlib import Path

import pytest

from carrel.domain.runtimes import Bind, SandboxSpec
from carrel.domain.trees import Owner
from carrel.runtimes.bubblewrap import arguments


def shown(path: str, *binds: Bind) -> list[str]:
    """The places to which bubblewrap binds the tree."""
    folder = Path("/data/sp_x")
    spec = SandboxSpec("sp_x", folder, folder / "project", Owner(1, 1), binds=binds, also_at=path)
    paths = {name: name for name in ("etc", "tmp", "hub", "home", "tree", "bind0")}
    argv = arguments("bwrap", spec, paths, list(binds), survive=True)
    return [argv[at + 2] for at, word in enumerate(argv) if argv[at : at + 2] == ["--bind", "tree"]]


@pytest.mark.parametrize(
    "path", ["/home/ada/work", "/root/p", "/srv/p", "/tmp/x/p", "/opt/p", "/home/user/p", "/var/p"]
)
def test_at_a_projects_own_path(path: str) -> None:
    assert shown(path) == ["/workspace", path]


@pytest.mark.parametrize(
    "path",
    [
        *("", "/", "/home", "/home/user", "/tmp", "/var", "/workspace", "/workspace/sub"),
        *("/usr/src/p", "/etc/p", "/dev/p", "/proc/p", "/run/user/1/p", "/lib/p", "/bin"),
        *("relative", "/a/../etc", "/a//b", "/agent", "/var/tmp/p"),
    ],
)
def test_not_where_the_sandbox_has_something_else(path: str) -> None:
    assert shown(path, Bind(Path("/x"), "/agent/state")) == ["/workspace"]
