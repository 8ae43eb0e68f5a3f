"""carrel open: a space in a person's own editor."""

from __future__ import annotations

import os
import shlex
import shutil

from carrel.cli.call import VerbCall, invalid
from carrel.cli.spec import SPACE, Option, Verb

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NamedTuple

    class Opened(NamedTuple):
        argv: list[str]
        """What opens it."""
        install: str
        """How one gets that program."""
else:
    from collections import namedtuple

    Opened = namedtuple("Opened", "argv install")

WORKSPACE = "/workspace"
LIVE = ("ready", "running")
EDITORS = ("code", "cursor", "zed", "idea", "vim")
NAMES = {"vi": "vim", "nvim": "vim", "code-insiders": "code", "zeditor": "zed", "gateway": "idea"}
"""Other programs that are meant by one of them."""
PROGRAMS = {
    "code": ("code", "code-insiders"),
    "cursor": ("cursor",),
    "zed": ("zed", "zeditor"),
    "idea": ("gateway", "jetbrains-gateway"),
    "vim": ("nvim", "vim", "vi"),
}
INSTALL = {
    "code": "Install VS Code with its extension Remote - SSH, and put `code` on the PATH.",
    "cursor": "Install Cursor, and put `cursor` on the PATH (command: Install 'cursor').",
    "zed": "Install Zed, and put `zed` on the PATH (its menu: Install CLI).",
    "idea": "Install JetBrains Gateway, and put `gateway` on the PATH (Toolbox: shell scripts).",
    "vim": "Install it: sudo apt-get install vim",
}
WITHOUT_SSH = ("process", "landlock")
"""Runtimes whose spaces have no accounts for SSH."""


@Verb(
    SPACE,
    Option("--editor code|cursor|zed|idea|vim", "Use this one; else $VISUAL or $EDITOR says."),
    Option("--folder", "Open its folder on this machine, where that is seen, and not by SSH."),
    Option("--print", "Only print the command."),
)
def open(call: VerbCall) -> int:
    """Open a space in your editor.

    The editor works in the space by SSH, with the space's own programs and limits. A space without
    SSH is opened as a plain folder: what the editor starts then runs on this machine, unconfined.
    """
    if not call.place.data:
        raise invalid(
            "The daemon of --url is on another machine, or is not yours.",
            hint="Run carrel open on that machine.",
        )
    space = call.ask("spaces.show", call.text("space"))
    editor = call.text("editor") or _usual()
    if space["state"] not in LIVE and not call.flag("print"):
        raise invalid(
            f"{space['name']} is {space['state']}.", hint=f"Start it: carrel start {space['name']}"
        )
    if call.flag("folder") or space["runtime"] in WITHOUT_SSH:
        found = _in_folder(editor, _folder(space))
    else:
        found = _by_ssh(call, editor, space)
    if call.flag("print"):
        call.say(shlex.join(found.argv))
        return 0
    try:
        os.execvp(found.argv[0], found.argv)
    except OSError:
        raise _missing(found) from None


def _usual() -> str:
    for name in ("VISUAL", "EDITOR"):
        words = os.environ.get(name, "").split()
        program = os.path.basename(words[0]) if words else ""
        if (known := NAMES.get(program, program)) in EDITORS:
            return known
    for editor in EDITORS:
        if any(map(shutil.which, PROGRAMS[editor])):
            return editor
    raise invalid(
        "No editor is found here that can open a space.",
        hint=f"Install one of {', '.join(EDITORS)}, or say with --print --editor what is to run.",
    )


def _program(editor: str) -> str:
    names = PROGRAMS[editor]
    return next((one for one in names if shutil.which(one)), names[0])


def _by_ssh(call: VerbCall, editor: str, space: dict[str, Any]) -> Opened:
    if editor == "idea":
        return Opened([_program(editor), _gateway(call, space)], INSTALL[editor])
    host = _host(call, space)
    if editor == "vim":
        # The space's own, where its files are; what an image has is not known here.
        words = ["carrel", "ssh", "-t", space["id"], "--", "vim", "."]
        return Opened(words, "Put `carrel` on the PATH.")
    _expect_configuration()
    if editor == "zed":
        return Opened([_program(editor), f"ssh://{host}{WORKSPACE}"], INSTALL[editor])
    uri = f"vscode-remote://ssh-remote+{host}{WORKSPACE}"
    return Opened([_program(editor), "--folder-uri", uri], INSTALL[editor])


def _in_folder(editor: str, folder: str) -> Opened:
    program = "idea" if editor == "idea" else _program(editor)
    return Opened([program, folder], INSTALL[editor])


def _host(call: VerbCall, space: dict[str, Any]) -> str:
    """By its name, which an editor shows, unless that is another one's too."""
    from carrel.domain.errors import CarrelError

    name = space["name"]
    try:
        known = bool(name) and call.ask("spaces.show", name)["id"] == space["id"]
    except CarrelError:
        known = False
    return f"{name if known else space['id']}.carrel"


def _folder(space: dict[str, Any]) -> str:
    path = str(space["path"])
    if not os.path.isdir(path) or (space["driver"] == "overlay" and not os.path.ismount(path)):
        raise invalid(
            f"The files of {space['name']} are not seen on this machine.",
            hint="Leave out --folder: the editor then comes in by SSH.",
        )
    return path


def _gateway(call: VerbCall, space: dict[str, Any]) -> str:
    """It reads no ProxyCommand, so it comes in by the listener."""
    from urllib.parse import urlencode

    listener = call.ask("ssh.listener")
    if not listener["port"]:
        raise invalid(
            "JetBrains Gateway comes in by the listener for SSH, which is off.",
            hint="Switch it on, and give it your key: carrel ssh-listen;"
            " carrel ssh-key add ~/.ssh/id_ed25519.pub --all",
        )
    told = {
        "type": "ssh",
        "host": "127.0.0.1",
        "port": listener["port"],
        "user": space["id"],
        "deploy": "true",
        "projectPath": WORKSPACE,
    }
    return f"jetbrains-gateway://connect#{urlencode(told)}"


def _expect_configuration() -> None:
    from carrel.cli.ssh_files import is_installed

    if not is_installed():
        raise invalid(
            "Editors find spaces by your configuration of ssh, which does not know them yet.",
            hint="carrel ssh-config --install",
        )


def _missing(found: Opened) -> Exception:
    from carrel.domain.errors import EditorUnavailable

    return EditorUnavailable(
        f"There is no program {found.argv[0]} here.",
        hint=f"{found.install} Or take another one: --editor",
    )
