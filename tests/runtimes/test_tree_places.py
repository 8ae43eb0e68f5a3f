"""Where a sandbox shows its tree beside /workspace."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from carrel.domain.runtimes import Bind, SandboxSpec
from carrel.domain.trees import Owner
from carrel.runtimes.arguments import arguments, tree_places
from carrel.runtimes.bubblewrap import ShownBinds, late_binds, late_targets, shown_binds
from carrel.runtimes.sandbox import HOME


def shown(path: str, *binds: Bind) -> list[str]:
    """The places to which bubblewrap binds the tree."""
    folder = Path("/data/sp_x")
    spec = SandboxSpec("sp_x", folder, folder / "project", Owner(1, 1), binds=binds, also_at=path)
    bound = shown_binds(spec)
    paths = {name: name for name in ("etc", "tree", *(f"bind{at}" for at in range(len(bound))))}
    argv = arguments("bwrap", spec, paths, bound, tree_places(spec), survive=True)
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
        *("relative", "/a/../etc", "/a//b", "/agent"),
    ],
)
def test_not_where_the_sandbox_has_something_else(path: str) -> None:
    assert shown(path, Bind(Path("/x"), "/agent/state")) == ["/workspace"]


def test_by_another_name_too() -> None:
    """Not within itself, where a link of the tree's own could be."""
    folder = Path("/data/sp_x")
    spec = SandboxSpec("sp_x", folder, folder / "project", Owner(1, 1), also_at="/srv/p")
    named = ["/workspace", "/srv/p", "/home/ada/p"]
    assert tree_places(replace(spec, and_at="/home/ada/p")) == named
    for path in ("/srv/p", "/srv/p/link", "/srv", "/etc/p", "/srv/q/../p"):
        assert tree_places(replace(spec, and_at=path)) == ["/workspace", "/srv/p"]


def test_below_what_is_a_link_in_the_sandbox() -> None:
    assert shown("/var/tmp/x/p") == ["/workspace", "/tmp/x/p"]


def test_not_where_another_sandbox_of_the_pod_writes(tmp_path: Path) -> None:
    """Bubblewrap follows links while it is setting up."""
    spec = SandboxSpec("sp_x", tmp_path, tmp_path / "project", Owner(1, 1), also_at="/tmp/x/p")
    assert tree_places(spec) == ["/workspace", "/tmp/x/p"]
    assert tree_places(replace(spec, pod="sp_x")) == ["/workspace"]
    assert tree_places(replace(spec, pod="sp_x", also_at="/var/tmp/p")) == ["/workspace"]
    assert tree_places(replace(spec, pod="sp_x", also_at="/srv/p")) == ["/workspace", "/srv/p"]


def _spec(folder: Path, *binds: Bind) -> SandboxSpec:
    for name in ("tmp", "hub", "home"):
        (folder / name).mkdir()
    return SandboxSpec("sp_x", folder, folder / "project", Owner(1, 1), binds=binds)


def test_folders_come_with_the_tree(tmp_path: Path) -> None:
    """First those of the sandbox itself, which others may be bound below."""
    state, tools = tmp_path / "state", tmp_path / "tools"
    state.mkdir()
    tools.mkdir()
    inside = Bind(state, f"{HOME}/state", writable=True)
    spec = _spec(tmp_path, inside, Bind(tools, "/opt/tools"))
    binds = shown_binds(spec)
    late = late_binds(binds, ())
    assert list(late) == binds
    targets = late_targets(ShownBinds(binds, ["/workspace", "/srv/p"], late))
    own = ["/tmp", "/run/carrel", HOME]
    assert targets == [*own, "/workspace", inside.target, "/opt/tools", "/srv/p"]
    argv = arguments("bwrap", spec, {"etc": "etc"}, binds, ["/workspace"], survive=True)
    made = [argv[at + 1] for at, word in enumerate(argv) if word == "--dir"]
    assert set(made) >= {*own, inside.target, "/opt/tools"}


def test_what_bubblewrap_binds_is_not_covered(tmp_path: Path) -> None:
    """A file, and what is hidden in a folder, have to be there before."""
    file, tools = tmp_path / "file", tmp_path / "tools"
    file.touch()
    tools.mkdir()
    spec = _spec(tmp_path, Bind(file, f"{HOME}/file"), Bind(tools, f"{HOME}/tools"))
    binds = shown_binds(spec)
    own = ["/tmp", "/run/carrel"]
    assert [one.target for one in late_binds(binds, ())] == [*own, f"{HOME}/tools"]
    assert [one.target for one in late_binds(binds, [str(tools / "key")])] == own
