"""Which toolchains of a home are found, and what of them is shown."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from pathlib import Path

import pytest

from carrel.domain.environments import HomeTools
from carrel.domain.errors import SpaceInvalid
from carrel.environments import tool_secrets
from carrel.environments.home_tools import ASKED, TABLE, HomeToolchains
from carrel.environments.login_shell import LoginShell, PersonAccount
from carrel.environments.tool_secrets import SECRETS
from tests.accounts import Account
from tests.environments.homes import fill, secret, tool
from tests.trees.again import run_again


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


def chains(home: Path, data: str = "data", *, shell: str = "") -> HomeToolchains:
    account = PersonAccount("ada", home, shell)
    asked = LoginShell(account, ASKED, home.parent / "cache.json") if shell else None
    return HomeToolchains(home.parent / data, account, asked)


def shown(found: HomeTools) -> dict[str, list[str]]:
    return {one.name: sorted(one.shown) for one in found.tools}


def inside(found: HomeTools, path: Path) -> bool:
    """Whether a sandbox sees it."""
    around = {path, *path.parents}
    places = {Path(place) for tool in found.tools for place in tool.shown}
    return bool(around & places) and not around & set(map(Path, found.hidden))


def settle(home: Path) -> None:
    """Nothing in it has just changed."""
    for path in (home, *home.rglob("*")):
        os.utime(path, (1, 1), follow_symlinks=False)


def test_by_the_table(home: Path) -> None:
    fill(home)
    found = chains(home).find()
    assert shown(found) == {
        "pyenv": [f"{home}/.pyenv"],
        "pipx": [f"{home}/.local/share/pipx/venvs"],
        "local": [f"{home}/.local/bin"],
        "nvm": [f"{home}/.nvm"],
        "rustup": [f"{home}/.rustup"],
        "cargo": [f"{home}/.cargo/bin"],
    }
    assert found.path_first == ()
    node = f"{home}/.nvm/versions/node"
    nodes = [entry for entry in found.path_last if entry.startswith(node)]
    assert nodes == [f"{node}/v20.1.0/bin", f"{node}/v9.0.0/bin"]
    env = {name: value for one in found.tools for name, value in one.env.items()}
    assert env["PYENV_ROOT"] == f"{home}/.pyenv" and env["RUSTUP_HOME"] == f"{home}/.rustup"
    assert "CARGO_HOME" not in env


def test_as_the_login_shell_has_them(home: Path) -> None:
    """The version that it uses, in the order of its PATH, wherever variables say that they are."""
    fill(home)
    elsewhere = tool(home / "tools" / "volta" / "bin" / "volta", "volta").parent.parent
    old = home / ".nvm" / "versions" / "node" / "v9.0.0" / "bin"
    # fnm and others make such a folder anew for each shell.
    (home / "of-this-shell").symlink_to(old)
    lines = [
        f"PATH={home}/of-this-shell:{home}/.cargo/bin:{home}/private:$PATH:{home}/.pyenv/shims",
        f"export VOLTA_HOME={elsewhere} NVM_BIN={old} JAVA_HOME=/etc",
    ]
    (home / ".bashrc").write_text("\n".join(lines))
    (home / ".profile").write_text(". ~/.bashrc")
    toolchains = chains(home, shell="/bin/bash")
    found = toolchains.find()
    assert found.path_first == (str(old), f"{home}/.cargo/bin")
    # What it has of a tool is all that it wants of it.
    assert found.path_last[0] == f"{home}/.pyenv/shims"
    assert not [entry for entry in found.path_last if "v20" in entry or "private" in entry]
    env = {name: value for one in found.tools for name, value in one.env.items()}
    assert env["VOLTA_HOME"] == str(elsewhere) and env["NVM_BIN"] == str(old)
    assert "JAVA_HOME" not in env
    # Agents are looked for in all versions.
    assert f"{home}/.nvm/versions/node/v20.1.0/bin" in toolchains.search().split(":")


def test_what_comes_and_goes_is_seen(home: Path) -> None:
    toolchains = chains(home)
    assert toolchains.find().tools == ()
    tool(home / ".deno" / "bin" / "deno", "deno")
    assert list(shown(toolchains.find())) == ["deno"]
    versions = home / ".nvm" / "versions" / "node"
    for version in ("v1.0.0", "v2.0.0"):
        tool(versions / version / "bin" / "node", "node")
        assert toolchains.find().path_last[0] == f"{versions}/{version}/bin"
    os.rename(home / ".deno", home / "gone")
    assert list(shown(toolchains.find())) == ["nvm"]


def test_no_row_shows_what_is_secret(home: Path) -> None:
    """With all tools and all secrets in one home."""
    hidden = [secret(home / name) for name in SECRETS]
    for row in TABLE:
        for folder in row.folders:
            place = home / folder.lstrip("/").replace("*", "1")
            for part in (*row.markers, *row.shows):
                tool(place / part / "program", "x")
    found = chains(home).find()
    assert {row.name for row in TABLE} == set(shown(found))
    assert [str(path) for path in hidden if inside(found, path)] == []


@pytest.mark.parametrize(
    "path",
    [
        *(".asdf/installs/nodejs/20/etc/npmrc", ".volta/tools/image/node/20/etc/npmrc"),
        *(".local/share/pnpm/global/5/.npmrc", ".pyenv/versions/3.12/pip.conf"),
        *("miniconda3/envs/x/.condarc", "miniconda3/envs/x/conda-meta/state"),
        *("miniconda3/envs/x/etc/conda/activate.d/keys.sh", "miniconda3/condarc.d/x.yml"),
        *(
            ".local/share/uv/tools/x/uv-receipt.toml",
            ".sdkman/candidates/maven/3/conf/settings.xml",
        ),
        *(".local/share/pipx/venvs/x/pipx_metadata.json", ".pyenv/plugins/x/.git/config"),
        *(".asdf/plugins/x/.git/config", ".asdf/installs/nodejs/20/lib/node_modules/npm/npmrc"),
        *(".sdkman/candidates/gradle/8/init.d/x.gradle", ".volta/tools/x/.aws/credentials"),
        *(".sdkman/candidates/gradle/8/gradle.properties", ".local/share/pnpm/rc"),
        *(".sdkman/candidates/maven/3/conf/settings-security.xml", ".volta/hooks.json"),
        *(".local/share/pnpm/global/5/.modules.yaml", ".local/go/go.env"),
        *(".bun/install/global/bunfig.toml", ".local/share/mise/plugins/x/.git/config"),
        *(".pyenv/versions/3.12/pip.conf.bak", ".volta/tools/.npmrc~"),
        "miniconda3/pkgs/x/info/repodata_record.json",
    ],
)
def test_settings_of_tools_are_not_shown(home: Path, path: str) -> None:
    """People put tokens there; what is beside them stays."""
    token = secret(home / path)
    hides = (".git", "pkgs", "init.d", ".aws", "activate.d", "condarc.d", "npm")
    last = next((one for one in token.parents if one.name in hides), token)
    beside = tool(last.parent / "lib" / "beside", "x")
    top = home / "/".join(path.split("/")[: 3 if path.startswith(".local/share") else 1])
    for name in ("shims", "versions", "bin", "candidates", "installs", "envs", "conda-meta"):
        (top / name).mkdir(exist_ok=True)
    tool(home / ".local" / "go" / "VERSION", "x")
    found = chains(home).find()
    assert inside(found, beside) and not inside(found, token)


def test_credentials_within_a_tool_are_left_out_and_all_else_stays(home: Path) -> None:
    fill(home)
    node = home / ".nvm" / "versions" / "node" / "v20.1.0"
    token = secret(node / "etc" / "npmrc")
    harmless = secret(node / "etc" / "other")
    found = chains(home).find()
    assert not inside(found, token) and found.hidden == (str(token),)
    seen: Iterable[Path] = (harmless, node / "bin" / "nodetool", node.parent / "v9.0.0" / "bin")
    assert all(inside(found, path) for path in seen)


URL = "https://ada:s3cr3t@index.corp/simple"


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("miniconda3/envs/x/conda-meta/history", f"# cmd: conda install -c {URL}"),
        ("miniconda3/envs/x/conda-meta/x.json", '{"url": "https://conda.corp/t/s3cr3t-1/ch/x"}'),
        (
            "miniconda3/envs/x/conda-meta/y.json",
            f'{{"files": [{"0," * 200_000}0], "url": "{URL}"}}',
        ),
        (".volta/tools/inventory/registry.json", '{"token": "ghp_0123456789abcdefghij"}'),
        (".pyenv/versions/3.12/lib/node_modules/.package-lock.json", f'{{"resolved": "{URL}"}}'),
        (".pyenv/versions/3.12/src/x/y/z/a/b/settings.ini", "url = https://0123456789@git.corp/x"),
        (".pyenv/versions/3.12/lib/python3.12/site-packages/distutils.cfg", f"index = {URL}"),
        (".local/bin/deploy", "curl -H 'Authorization: Bearer ghp_0123456789abcdefghij'"),
        (".nvm/alias/lts.ini.orig", "//h/:_authToken=abcdef"),
        (".rustup/settings.toml", "-----BEGIN OPENSSH PRIVATE KEY-----"),
    ],
)
def test_what_has_a_password_in_it_is_not_shown(home: Path, path: str, text: str) -> None:
    fill(home)
    (home / "miniconda3" / "envs").mkdir(parents=True)
    token = secret(home / path)
    (home / ".volta" / "bin").mkdir(parents=True, exist_ok=True)
    beside = token.with_name(f"other-{token.name}")
    for file in (token, beside):
        file.write_text("pk_a_name_of_a_column = https://index.corp/simple git@corp: x@y\n")
    settle(home)
    toolchains = chains(home)
    assert inside(toolchains.find(), token)
    before = os.stat(token.parent)
    token.write_text(text)
    os.utime(token.parent, ns=(before.st_atime_ns, before.st_mtime_ns))
    if token.parent.name != "conda-meta":
        assert not inside(toolchains.find(), token)
    # Also by a daemon that has not seen it harmless.
    found = chains(home).find()
    assert not inside(found, token) and inside(found, beside)


@pytest.mark.parametrize(
    "path",
    [
        *(".nvm/versions/node/v20.1.0/etc/npmrc", ".pyenv/versions/3.99.0/pip.conf"),
        *(".pyenv/versions/3.99.0/envs/x/.env", ".pyenv/plugins/x/.git/config"),
        ".local/share/pipx/venvs/x/.condarc",
    ],
)
def test_what_comes_later_is_not_shown_either(home: Path, path: str) -> None:
    fill(home)
    for folder in (home / path).parents:
        if folder.name != ".git":
            folder.mkdir(parents=True, exist_ok=True)
    settle(home)
    toolchains = chains(home)
    earlier = toolchains.find()
    token = secret(home / path)
    assert inside(earlier, token)
    assert not inside(toolchains.find(), token)
    # Nor to a space that was made before, when it starts again.
    later = toolchains.narrowed(earlier, ())
    assert not inside(later, token) and inside(later, home / ".cargo" / "bin")
    assert [one.env for one in later.tools] == [one.env for one in earlier.tools]
    token.unlink()
    assert inside(toolchains.find(), token) or ".git" in path


def test_a_link_to_a_password_hides_what_it_leads_to(home: Path) -> None:
    fill(home)
    node = home / ".nvm" / "versions" / "node" / "v20.1.0"
    token = secret(node / "etc" / "kept-elsewhere.txt")
    (node / "etc" / "npmrc").symlink_to(token.name)
    (node / "etc" / ".npmrc").symlink_to("/etc/passwd")
    found = chains(home).find()
    assert found.hidden == (str(token),)


def test_a_folder_with_many_is_hidden_as_a_whole(home: Path) -> None:
    fill(home)
    for number in range(tool_secrets.MOST_IN_FOLDER + 1):
        secret(home / ".nvm" / "cache" / f"{number}.json").write_text(f"url = {URL}")
    secret(home / ".nvm" / "few" / ".npmrc")
    found = chains(home).find()
    assert set(found.hidden) == {f"{home}/.nvm/cache", f"{home}/.nvm/few/.npmrc"}


def test_what_is_too_much_is_not_shown_unseen(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_secrets, "MOST_FOLDERS", 6)
    fill(home)
    deep = home / ".volta" / "tools" / "a" / "b"
    token = secret(deep / "c" / "d" / "e" / "f" / ".npmrc")
    tool(home / ".volta" / "bin" / "volta", "volta")
    found = chains(home).find()
    assert inside(found, home / ".volta" / "bin") and not inside(found, token)
    assert {one.name: one.partly for one in found.tools}["volta"]


def test_sockets_and_pipes_are_not_shown(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(home)
    folder = home / "notes.d"
    (folder / "a" / "b").mkdir(parents=True)
    doors = [home / ".nvm" / "pipe", home / ".pyenv" / "shims" / "pipe", folder / "a" / "pipe"]
    for door in (*doors, folder / "a" / "b" / "pipe"):
        os.mkfifo(door)
    with socket.socket(socket.AF_UNIX) as listener:
        monkeypatch.chdir(folder)
        listener.bind("socket")
    toolchains = chains(home)
    assert set(toolchains.find().hidden) == set(map(str, doors[:2]))
    monkeypatch.setattr(tool_secrets, "MOST_FOLDERS", 2)
    narrowed = toolchains.narrowed(HomeTools(), set(toolchains.check(str(folder)).values()))
    # What is deeper than that is not looked at.
    assert set(narrowed.hidden) == {str(doors[2]), f"{folder}/socket"}


def test_locks_of_tools_are_not_shown(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(home)
    tool(home / ".volta" / "bin" / "volta", "volta")
    locks = [home / ".volta" / name for name in ("volta.lock", "tools/.lock", "tools/a/b/.lock")]
    for lock in locks:
        lock.parent.mkdir(parents=True, exist_ok=True)
        lock.touch()
    (home / ".volta" / "Cargo.lock").write_text("# of a project\n" * 9)
    monkeypatch.setattr(tool_secrets, "MOST_LOCKS", 2)
    assert set(chains(home).find().hidden) == set(map(str, locks[:2]))


def test_a_folder_of_many_sockets_is_not_shown(home: Path) -> None:
    (home / "many").mkdir()
    toolchains = chains(home)
    shown = toolchains.check(str(home / "many")).values()
    for number in range(tool_secrets.MOST_IN_FOLDER + 1):
        os.mkfifo(home / "many" / str(number))
    with pytest.raises(SpaceInvalid, match="too many sockets"):
        toolchains.check(str(home / "many"))
    assert toolchains.narrowed(HomeTools(), set(shown)).hidden == (f"{home}/many",)


def test_links_and_folders_that_would_show_more(home: Path, tmp_path: Path) -> None:
    fill(home)
    disk = tmp_path / "disk"
    tool(disk / "bin" / "deno", "deno")
    (home / ".deno").symlink_to(disk)
    (home / ".bun").symlink_to("/etc")
    (home / ".volta").symlink_to(home)
    (home / ".asdf").symlink_to(home / ".ssh")
    (home / ".ssh" / "shims").mkdir()
    (home / ".pyenv" / "leak").symlink_to("/etc/shadow")
    os.rename(home / ".cargo" / "bin", home / "private")
    (home / ".cargo" / "bin").symlink_to(home / "private")
    secret(home / ".nvm" / "versions" / "node" / "v20.1.0" / "etc" / "npmrc")
    (home / ".nvm" / "more").symlink_to(home / "private")
    tools = chains(home, data="home/.rustup/carrel").find()
    found = shown(tools)
    # A link of the person's own is followed, and shown at both paths.
    assert found["deno"] == sorted([f"{disk}/bin", f"{home}/.deno/bin"])
    assert not {"bun", "volta", "asdf", "rustup", "cargo"} & set(found)
    assert not inside(tools, home / "private")
    assert set(tools.tools[0].shown.values()) == {f"{home}/.pyenv"}
    assert "rustup" in shown(chains(home).find())


def test_what_may_be_shown_by_name(home: Path, tmp_path: Path) -> None:
    fill(home)
    toolchains = chains(home)
    for good in (home / "notes", home / ".nvm", tmp_path / "home" / ".pyenv"):
        assert toolchains.check(str(good)) == {str(good): str(good)}
    link = tmp_path / "link"
    link.symlink_to(home / ".nvm")
    assert set(toolchains.check(str(link))) == {str(link), f"{home}/.nvm"}
    (tmp_path / "data" / "spaces").mkdir(parents=True)
    (tmp_path / "to-keys").symlink_to(home / ".ssh")
    os.mkfifo(tmp_path / "fifo")
    refused = ["relative", "/", "/etc", "/etc/ssl", "/proc/self", "/dev/null", "/home", "/tmp"]
    refused += [str(home), str(tmp_path), f"{home}/.ssh", f"{home}/.ssh/id", f"{home}/.config"]
    refused += [f"{home}/.cargo", f"{home}/.cargo/credentials.toml", f"{tmp_path}/data/spaces"]
    refused += [f"{tmp_path}/to-keys", f"{tmp_path}/fifo", f"{home}/missing", f"{home}/\0"]
    refused += [f"{home}/.nvm/../.ssh", f"{tmp_path}/elsewhere/.ssh", "/run", "/workspace/x"]
    for bad in refused:
        with pytest.raises(SpaceInvalid) as error:
            toolchains.check(bad)
        assert error.value.message.endswith(".") and error.value.hint


def test_without_root(ordinary_user: Account, data: Path) -> None:
    run_again(__file__, ordinary_user, data, "-k", "table or login_shell or comes_and_goes")
