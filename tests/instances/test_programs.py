"""Where servers are found, by the layouts that installers make."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from carrel.domain.errors import ServerNotInstalled
from carrel.domain.instances import Found, PortBy, Server, Wrap
from carrel.instances.built_in import CARREL, EVERYTHING, FILESYSTEM, SERENA
from carrel.instances.programs import SHOWN, ServerLocator
from tests.instances.installed import require, search_path

RUN_S = 30.0
NOWHERE = Path("/nowhere")


def _file(path: Path, text: str = "\x7fELF") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def _link(path: Path, target: Path | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)
    return path


def _base(prefix: Path, version: str = "3.12") -> Path:
    """An interpreter with its library."""
    _file(prefix / "lib" / f"python{version}" / "os.py", "")
    return _file(prefix / "bin" / f"python{version}")


def _venv(folder: Path, base: Path) -> Path:
    _link(folder / "bin" / "python", base)
    _file(folder / "pyvenv.cfg", f"home = {base.parent}\nversion = 3.12\n")
    return folder


def _locate(command: str, *search: Path, words: tuple[str, ...] = ("--x",)) -> Found:
    locator = ServerLocator(os.pathsep.join(map(str, search)), NOWHERE)
    return locator.locate(Server("mine", (command, *words)))


def test_a_script_of_an_environment(tmp_path: Path) -> None:
    base = _base(tmp_path / "base")
    venv = _venv(tmp_path / "venv", base)
    script = _file(venv / "bin" / "serve", f"#!{venv}/bin/python\n")
    found = _locate("serve", venv / "bin")
    python = str(venv / "bin" / "python")
    assert found.argv == (python, str(script), "--x")
    assert set(found.binds) == {str(venv), str(tmp_path / "base")}
    assert (found.python, found.path) == (python, str(venv / "bin"))


def test_a_tool_of_uv(tmp_path: Path) -> None:
    share = tmp_path / "home" / ".local" / "share" / "uv"
    exact = share / "python" / "cpython-3.12.5"
    _base(exact)
    minor = _link(share / "python" / "cpython-3.12", exact)
    venv = _venv(share / "tools" / "serena", minor / "bin" / "python3.12")
    script = _file(venv / "bin" / "serve", f"#!{venv}/bin/python\n")
    _link(tmp_path / "home" / ".local" / "bin" / "serve", script)
    found = _locate("serve", tmp_path / "home" / ".local" / "bin")
    assert found.argv == (str(venv / "bin" / "python"), str(script), "--x")
    assert set(found.binds) == {str(venv), str(minor), str(exact)}
    assert found.path == str(venv / "bin")


def test_a_link_to_an_interpreter_does_not_show_the_folder_above(tmp_path: Path) -> None:
    home = tmp_path / "home" / ".local"
    base = _base(tmp_path / "pythons")
    python = _link(home / "bin" / "python3.12", base)
    _file(home / "share" / "keys", "secret")
    script = _file(tmp_path / "tools" / "serve", f"#!{python}\n")
    found = _locate(str(script))
    assert set(found.binds) == {str(python), str(tmp_path / "pythons"), str(script)}


def test_a_long_path_is_on_the_second_line(tmp_path: Path) -> None:
    venv = _venv(tmp_path / "with a space", _base(tmp_path / "base"))
    python = venv / "bin" / "python"
    text = f"#!/bin/sh\n'''exec' '{python}' \"$0\" \"$@\"\n' '''\nimport sys\n"
    script = _file(venv / "bin" / "serve", text)
    assert _locate(str(script)).argv == (str(python), str(script), "--x")


def test_what_is_used_where_it_is_written_is_shown(tmp_path: Path) -> None:
    venv = _venv(tmp_path / "venv", _base(tmp_path / "base"))
    source = tmp_path / "code" / "src"
    source.mkdir(parents=True)
    pth = f"import this\n{source}\n{tmp_path / 'gone'}\n"
    _file(venv / "lib" / "python3.12" / "site-packages" / "mine.pth", pth)
    script = _file(venv / "bin" / "serve", f"#!{venv}/bin/python\n")
    assert str(source) in _locate(str(script)).binds
    assert str(tmp_path / "gone") not in _locate(str(script)).binds


@pytest.mark.parametrize("said", ["3.12.1\n", "9.9.9\n", None])
def test_a_stand_in_of_pyenv(tmp_path: Path, said: str | None) -> None:
    root = tmp_path / "pyenv"
    python = _base(root / "versions" / "3.12.1")
    script = _file(root / "versions" / "3.12.1" / "bin" / "serve", f"#!{python}\n")
    _file(root / "shims" / "serve", "#!/bin/sh\nexec pyenv exec serve\n")
    if said is not None:
        _file(root / "version", said)
    found = _locate("serve", root / "shims")
    assert found.argv == (str(python), str(script), "--x")
    assert found.binds == (str(root / "versions" / "3.12.1"),)


def test_a_script_of_node(tmp_path: Path) -> None:
    node = _file(tmp_path / "nvm" / "bin" / "node")
    modules = tmp_path / "app" / "node_modules"
    script = _file(modules / "a" / "node_modules" / "b" / "x.js", "#!/usr/bin/env -S node --y\n")
    _link(modules / ".bin" / "serve", script)
    found = _locate("serve", modules / ".bin", node.parent)
    assert found.argv == (str(node), "--y", str(script), "--x")
    assert set(found.binds) == {str(node), str(modules)}
    assert (found.python, found.path) == ("", str(modules / ".bin"))


def test_a_package_that_is_linked(tmp_path: Path) -> None:
    node = _file(tmp_path / "bin" / "node")
    package = tmp_path / "package"
    _file(package / "package.json", "{}")
    script = _file(package / "dist" / "x.js", "#!/usr/bin/env node\n")
    assert set(_locate(str(script), node.parent).binds) == {str(node), str(package)}


def test_an_interpreter_and_its_script(tmp_path: Path) -> None:
    venv = _venv(tmp_path / "venv", _base(tmp_path / "base"))
    script = _file(tmp_path / "serve.py", "")
    python = str(venv / "bin" / "python")
    found = _locate(python, words=(str(script),))
    assert found.argv == (python, str(script))
    assert set(found.binds) == {str(venv), str(tmp_path / "base"), str(script)}
    assert found.python == python


def test_a_binary_is_shown_alone(tmp_path: Path) -> None:
    real = _file(tmp_path / "opt" / "serve-1.0")
    link = _link(tmp_path / "bin" / "serve", real)
    found = _locate("serve", link.parent)
    assert found.argv == (str(link), "--x")
    assert set(found.binds) == {str(link), str(real)}


def test_what_all_sandboxes_have_is_not_shown_again() -> None:
    found = ServerLocator("/usr/bin").locate(
        Server("mine", ("sh",), binds=("/usr/share", "/srv/data"))
    )
    assert found.binds == ("/srv/data",)


def test_what_begins_with_a_place_is_left() -> None:
    server = Server("mine", ("{project}/serve", "a"), binds=("/srv/data",))
    assert ServerLocator("").locate(server) == Found(("{project}/serve", "a"), ("/srv/data",))


@pytest.mark.parametrize("command", ["sh", "{project}/serve"])
def test_what_is_wrapped_as_python_is_python(command: str) -> None:
    server = Server("mine", (command,), port_by=PortBy.SOCKET, wrap=Wrap.UVICORN)
    with pytest.raises(ServerNotInstalled, match="Python program"):
        ServerLocator("/usr/bin").locate(server)


def test_what_is_not_there_says_how_to_have_it(tmp_path: Path) -> None:
    with pytest.raises(ServerNotInstalled, match="no `mcp-server-filesystem`") as caught:
        ServerLocator(str(tmp_path), NOWHERE).locate(FILESYSTEM)
    assert caught.value.hint == f"Run: {FILESYSTEM.install}"
    script = _file(tmp_path / "serve", "#!/usr/bin/env no-such-interpreter\n")
    with pytest.raises(ServerNotInstalled, match="needs `no-such-interpreter`") as caught:
        _locate(str(script))
    assert caught.value.hint
    for name in ("./serve", "sub/serve", str(tmp_path)):
        with pytest.raises(ServerNotInstalled):
            _locate(name, tmp_path)


def test_carrel_is_our_own(tmp_path: Path) -> None:
    """Another one may come first on the path."""
    _file(tmp_path / "carrel", "#!/bin/sh\n")
    found = ServerLocator(str(tmp_path)).locate(CARREL)
    assert os.path.realpath(found.python) == os.path.realpath(sys.executable)


@pytest.mark.parametrize(
    ("server", "words", "said"),
    [
        (SERENA, ("--version",), "2.1.0"),
        (CARREL, ("--version",), "carrel"),
        (EVERYTHING, ("nothing",), "Unknown transport"),
        (FILESYSTEM, ("/none",), "/none"),
    ],
    ids=lambda value: value.name if isinstance(value, Server) else "",
)
def test_what_is_shown_is_enough(server: Server, words: tuple[str, ...], said: str) -> None:
    """Real ones, in a sandbox that shows nothing else."""
    if server is not CARREL:
        require(server.name)
    found = ServerLocator(search_path()).locate(server)
    argv = found.argv[: len(found.argv) - len(server.command) + 1]
    ran = subprocess.run(
        ["bwrap", *_shown(found.binds), "--", *argv, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert said in ran.stdout


def _shown(binds: tuple[str, ...]) -> list[str]:
    made = ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--clearenv"]
    made += ["--setenv", "HOME", "/tmp", "--setenv", "PATH", "/usr/bin:/bin"]
    for path in SHOWN:
        if os.path.islink(path):
            made += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            made += ["--ro-bind", path, path]
    for path in binds:
        made += ["--ro-bind", path, path]
    return made
