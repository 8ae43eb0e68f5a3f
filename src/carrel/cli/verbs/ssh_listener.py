"""The listener for SSH, and the keys that open it."""

from __future__ import annotations

from carrel.cli.call import VerbCall, invalid
from carrel.cli.output import AnswerTable, clean
from carrel.cli.spec import Argument, Option, Verb
from carrel.cli.values import age_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST_KEY = 16_384


@Verb(
    Option("--port N", "Listen there; else on a port that is free, and then always on that."),
    Option("--stop", "Listen no more. Connections that are there go on."),
    Option("--show", "Only say whether and where it listens."),
)
def ssh_listen(call: VerbCall) -> None:
    """Listen for SSH on a port of loopback, for programs that know no ProxyCommand.

    The user name is the space: ssh -p PORT SPACE@127.0.0.1; SPACE-agent is its agent's terminal.
    Only keys of `carrel ssh-key` open it, each for its own spaces. It is off until this switches it
    on, and then on again whenever the daemon starts.
    """
    if call.flag("stop") and (call.flag("show") or call.whole("port") is not None):
        raise invalid("--stop cannot be used with other options.")
    if call.flag("stop"):
        found = call.ask("ssh.stop_listening")
    elif call.flag("show"):
        found = call.ask("ssh.listener")
    else:
        found = call.ask("ssh.listen", content={"port": call.whole("port") or 0})
    call.answer(found, _listening)
    if found["port"] and not call.json and not call.ask("ssh_keys.list")["keys"]:
        call.note("No key opens it yet: carrel ssh-key add ~/.ssh/id_ed25519.pub --space SPACE")


def _listening(found: dict[str, Any]) -> str:
    port = found["port"]
    if not port:
        return "Nothing listens for SSH."
    kind, _, rest = found["host_key"].partition(" ")
    words = [
        f"Come in: ssh -p {port} SPACE@127.0.0.1",
        f"For ~/.ssh/known_hosts: [127.0.0.1]:{port} {kind} {rest.partition(' ')[0]}",
    ]
    if found["problem"]:
        words.append(f"It does not listen now: {clean(found['problem'])}")
    return "\n".join(words)


@Verb(
    Argument("key", completes="files"),
    Option("--space SPACE...", "Let it open this space."),
    Option("--label K=V...", "Let it open all spaces with this label.", kind="many"),
    Option("--all", "Let it open every space, as you can."),
    Option("--name TEXT", "Name it; else what stands after the key is its name."),
)
def ssh_key_add(call: VerbCall) -> None:
    """Let a public key open the listener of `carrel ssh-listen`, for some spaces.

    KEY is a file such as ~/.ssh/id_ed25519.pub, - for standard input, or the key itself. --space
    and --label may be given several times.
    """
    labels = [f"label:{one}" for one in call.texts("label")]
    spaces = [f"space:{call.ask('spaces.show', one)['id']}" for one in call.texts("space")]
    scopes = ["admin"] if call.flag("all") else [*spaces, *labels]
    if not scopes or (call.flag("all") and (spaces or labels)):
        raise invalid(
            "Nobody said what the key opens, or two things at once.",
            hint="Give --space and --label as often as you like, or --all alone.",
        )
    content = {"key": _read(call.text("key")), "scopes": scopes, "name": call.text("name")}
    call.answer(call.ask("ssh_keys.add", content=content), lambda key: str(key["id"]))


def _read(word: str) -> str:
    import os
    import sys

    if " " in word.strip() and not os.path.exists(os.path.expanduser(word)):
        return word
    try:
        if word == "-":
            return sys.stdin.read(MOST_KEY + 1)
        with open(os.path.expanduser(word), encoding="utf-8", errors="replace") as file:
            return file.read(MOST_KEY + 1)
    except OSError as error:
        raise invalid(
            f"{word} cannot be read: {error.strerror}.",
            hint="Name the file of a public key, such as ~/.ssh/id_ed25519.pub.",
        ) from None


ssh_key_ls = Verb(
    help="List the keys that open the listener for SSH.",
    ask="ssh_keys.list",
    text=AnswerTable(
        "keys",
        {
            "ID": "id",
            "NAME": "name",
            "OPENS": lambda key: ", ".join(key["scopes"]),
            "KIND": "kind",
            "FINGERPRINT": "fingerprint",
            "AGE": lambda key: age_of(key["created_at"]),
        },
        shrink=("NAME", "OPENS", "FINGERPRINT"),
        empty="No key opens the listener.",
    ),
)
ssh_key_rm = Verb(
    Argument("key"),
    help="Take a key away, by its id, name or fingerprint. Its connections end.",
    ask="ssh_keys.remove",
    text=lambda key: str(key["id"]),
)
