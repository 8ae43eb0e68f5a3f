"""docs/ssh.md: the listener, the keys that open it, and a space in an editor, by what the page and
docs/api.md say alone. tests/ssh has OpenSSH's own programs."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.cli.program import Program
from tests.daemon.rig import Daemon, bad, fresh_daemon, good

KINDS = {"ed25519": (), "ecdsa": (), "rsa": ("-b", "2048")}


@pytest.fixture(scope="module")
def listening() -> Iterator[Daemon]:
    """With a listener and keys of its own."""
    with fresh_daemon(listen=None) as found:
        yield found


@pytest.fixture
def carrel(listening: Daemon, tmp_path: Path) -> Program:
    (tmp_path / "greet").mkdir()
    (tmp_path / "greet" / "greet.py").write_text("print('Hello')\n")
    return Program(listening.data, tmp_path)


@pytest.fixture
def owner(listening: Daemon) -> Iterator[httpx.Client]:
    with listening.local() as found:
        yield found


@pytest.fixture
def space(carrel: Program) -> Iterator[str]:
    name = carrel.good("new", "./greet", "--label", "team=a").strip()
    yield name
    carrel("rm", "--force", name)


def key(folder: Path, kind: str = "ed25519", *more: str) -> Path:
    path = folder / f"id_{kind}"
    made = ["ssh-keygen", "-q", "-t", kind, *more, "-N", "", "-C", f"my {kind}", "-f", str(path)]
    subprocess.run(made, check=True, timeout=60)
    return path


def login(port: int, name: str, identity: Path, *words: str) -> subprocess.CompletedProcess[str]:
    options = ["-F", "none", "-o", "IdentitiesOnly=yes", "-o", "StrictHostKeyChecking=no"]
    options += ["-o", "UserKnownHostsFile=/dev/null", "-o", "BatchMode=yes", "-i", str(identity)]
    command = ["ssh", *options, "-p", str(port), f"{name}@127.0.0.1", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def test_the_listener_by_http(owner: httpx.Client) -> None:
    off = {"port": 0, "host_key": "", "problem": ""}
    assert good(owner.get("/v1/ssh/listener")) == off
    found = good(owner.put("/v1/ssh/listener", json={}))
    assert found["port"] > 1023 and found["host_key"].startswith("ssh-ed25519 ")
    assert good(owner.put("/v1/ssh/listener", json={})) == found
    assert good(owner.get("/v1/ssh/listener")) == found
    assert good(owner.delete("/v1/ssh/listener"))["port"] == 0
    assert good(owner.get("/v1/ssh/listener")) == off


def test_keys_by_http(owner: httpx.Client, space: str, tmp_path: Path) -> None:
    """Of these kinds, for these spaces; a private one is told apart."""
    for kind, more in KINDS.items():
        path = key(tmp_path, kind, *more)
        text = path.with_name(f"{path.name}.pub").read_text()
        asked = {"key": text, "scopes": ["label:team=a"]}
        made = good(owner.post("/v1/ssh/keys", json=asked))
        assert made["name"] == f"my {kind}" and made["scopes"] == ["label:team=a"]
        assert made["fingerprint"].startswith("SHA256:")
        assert made in good(owner.get("/v1/ssh/keys"))["keys"]
        bad(owner.post("/v1/ssh/keys", json=asked), 422, "ssh_key_invalid")
        # By any of its words.
        word = {"ed25519": made["id"], "ecdsa": made["name"]}.get(kind, made["fingerprint"])
        assert good(owner.delete(f"/v1/ssh/keys/{word}"))["id"] == made["id"]
        bad(owner.delete(f"/v1/ssh/keys/{made['id']}"), 404, "ssh_key_not_found")
    private = (tmp_path / "id_ed25519").read_text()
    for wrong in (private, "no key", f"command=x {text}"):
        asked = {"key": wrong, "scopes": ["admin"]}
        bad(owner.post("/v1/ssh/keys", json=asked), 422, "ssh_key_invalid")


def test_a_key_opens_its_own_spaces(carrel: Program, space: str, tmp_path: Path) -> None:
    other = carrel.good("new", "./greet").strip()
    port = carrel.json("ssh-listen")["port"]
    assert str(port) in carrel.good("ssh-listen", "--show")
    one, by_label = key(tmp_path), key(tmp_path, "ecdsa")
    added = carrel.good("ssh-key", "add", f"{one}.pub", "--space", space, "--name", "laptop")
    carrel.good("ssh-key", "add", f"{by_label}.pub", "--label", "team=a")
    for identity in (one, by_label):
        done = login(port, space, identity, "cat greet.py; exit 5")
        assert (done.returncode, done.stdout) == (5, "print('Hello')\n"), done.stderr
        refused = login(port, other, identity, "true")
        assert refused.returncode == 255 and "Permission denied" in refused.stderr
    listed = carrel.good("ssh-key", "ls")
    assert "laptop" in listed and "label:team=a" in listed
    assert carrel.good("ssh-key", "rm", "laptop") == added
    assert "Permission denied" in login(port, space, one, "true").stderr
    every = carrel.good("ssh-key", "add", f"{one}.pub", "--all").strip()
    assert login(port, other, one, "true").returncode == 0
    carrel.good("ssh-key", "rm", every)
    carrel.good("ssh-listen", "--stop")
    assert "Nothing listens" in carrel.good("ssh-listen", "--show")
    again = carrel.json("ssh-listen", "--port", str(port))
    assert again["port"] == port
    carrel.good("ssh-listen", "--stop")
    carrel.good("rm", "--force", other)


def test_an_agent_is_lent_by_two_yeses(carrel: Program, space: str) -> None:
    ask = ("--", "printenv SSH_AUTH_SOCK || echo none")
    assert carrel.json("show", space)["ssh_agent"] is False
    refused = carrel("ssh", "--forward-agent", space, *ask)
    assert refused.code == 2 and f"carrel update {space} --ssh-agent yes" in refused.err
    carrel.good("update", space, "--ssh-agent", "yes")
    assert carrel.json("show", space)["ssh_agent"] is True
    assert carrel.good("ssh", space, *ask) == "none\n"
    carrel.good("update", space, "--ssh-agent", "no")
    assert carrel.json("show", space)["ssh_agent"] is False


def test_a_space_in_an_editor(carrel: Program, space: str, tmp_path: Path) -> None:
    carrel.env.update(HOME=str(tmp_path), VISUAL="", EDITOR="")
    missing = carrel("open", space, "--editor", "code", "--print")
    assert missing.code == 2 and "carrel ssh-config --install" in missing.err
    carrel.good("ssh-config", "--install", "--yes")
    said = {
        "code": "vscode-remote://ssh-remote+",
        "cursor": "vscode-remote://ssh-remote+",
        "zed": "ssh://",
        "vim": "ssh",
    }
    for editor, words in said.items():
        assert words in carrel.good("open", space, "--editor", editor, "--print"), editor
    done = carrel("open", space, "--editor", "emacs", "--print")
    assert done.code == 2 and "code" in done.err


def test_an_editor_that_is_missing_is_named(carrel: Program, space: str) -> None:
    """With how it is installed."""
    done = carrel("open", space, "--folder", "--editor", "cursor", "--json")
    assert "editor_unavailable" in done.out + done.err, done
    assert "Install Cursor" in done.out + done.err
