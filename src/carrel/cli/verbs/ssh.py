"""carrel ssh, and what makes `ssh SPACE.carrel` work in every program that uses OpenSSH."""

from __future__ import annotations

import _socket
import os
import sys

from carrel.cli.call import VerbCall, invalid
from carrel.cli.spec import Argument, Option, Verb

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from carrel.client.address import Address

DOMAIN = ".carrel"
SOCKET = "ssh"
"""Beside the daemon's own."""
ANSWER_S = 60.0
"""The daemon may have to set up the sandbox first."""
MOST_ANSWER = 1 << 16


@Verb(
    Argument("space", completes="spaces"),
    Argument("command", required=False, many=True),
    Option("--agent", "See the agent's terminal; a COMMAND runs where the agent is."),
    Option("-t, --tty", "Give the COMMAND a terminal."),
    Option("-A, --forward-agent", "Lend it your SSH agent; see `carrel update --ssh-agent`."),
)
def ssh(call: VerbCall) -> int:
    """Come into a space by SSH: a shell in the project's environment, or a COMMAND.

    It needs no configuration. `carrel ssh-config` prints what makes `ssh SPACE.carrel`, sftp, scp,
    rsync, git and editors find spaces, too.
    """
    _own(call)
    found = call.ask("ssh.access")
    host = call.text("space").removesuffix(DOMAIN)
    if not host or host.startswith("-"):
        raise invalid(f"{host!r} is no space.", hint="`carrel ls` lists them.")
    options = ["-t"] if call.flag("tty") else []
    if call.flag("forward_agent"):
        options += _lending(call.ask("spaces.show", host))
    if call.flag("agent"):
        # By its id: another space may be called as this one with `-agent`.
        host = call.ask("spaces.show", host)["id"] + "-agent"
    words = ["ssh", "-F", found["config"], *options, f"{host}{DOMAIN}"]
    if command := call.texts("command"):
        import shlex

        # ssh hands one line to a shell there, which takes it apart again.
        words += ["--", command[0] if len(command) == 1 else shlex.join(command)]
    try:
        os.execvp(words[0], words)
    except OSError:
        raise _missing() from None


def _lending(space: dict[str, Any]) -> list[str]:
    """What runs in the space can log in as the person, wherever the agent's keys do: so it takes
    two to say yes, the person's space and the person's command."""
    if not space.get("ssh_agent"):
        raise invalid(
            f"{space['name']} may not use your SSH agent: what runs in it could log in elsewhere"
            " as you.",
            hint=f"If you trust all that runs in it: carrel update {space['name']} --ssh-agent yes",
        )
    return ["-o", "IdentityAgent=SSH_AUTH_SOCK", "-o", "ForwardAgent=yes"]


@Verb(
    Option("--install", "Put it into a file that your ~/.ssh/config includes."),
    Option("--remove", "Take it out again."),
    Option("--yes", "Change the files without asking."),
)
def ssh_config(call: VerbCall) -> int:
    """Print the configuration by which ssh finds spaces, as `ssh SPACE.carrel`.

    It works as it stands in any file that is given to `ssh -F`. With --install it goes into a file
    of its own, and one line of ~/.ssh/config includes that; what changes is shown first.
    """
    from carrel.cli.ssh_files import install, remove

    if call.flag("install") and call.flag("remove"):
        raise invalid("Only one of --install and --remove can be done.")
    if call.flag("remove"):
        return remove(call)
    _own(call)
    found = call.ask("ssh.access")
    if call.flag("install"):
        return install(call, found["block"])
    call.answer(found, lambda one: one["block"].rstrip("\n"))
    return 0


@Verb(Argument("host"))
def ssh_proxy(call: VerbCall) -> int:
    """Connect ssh to a space: the `ProxyCommand` of `carrel ssh-config`.

    It hands the connection over to ssh on its standard output (`ProxyUseFdpass`), and ends.
    """
    place = _own(call)
    control = _connect(place, autostart=not call.flag("no_start"))
    ours, theirs = _socket.socketpair()
    try:
        from json import dumps, loads

        asked = dumps({"host": call.text("host")}).encode()
        _send(control, asked, theirs.fileno())
        theirs.close()
        answer = loads(_answer(control) or b'{"message": "The daemon hung up."}')
        if not answer.get("ok"):
            from carrel.domain.errors import SshUnavailable

            raise SshUnavailable(answer["message"], hint=answer.get("hint", ""))
        _hand_over(ours)
    finally:
        ours.close()
        control.close()
    return 0


def _own(call: VerbCall) -> Address:
    """Where one's own daemon is. What another one says of ssh is not followed here: a
    configuration names programs that run on this machine."""
    place = call.place
    if not place.data:
        raise invalid(
            "The daemon of --url is on another machine, or is not yours.",
            hint="Come in on that machine: ssh -J MACHINE is a way.",
        )
    return place


def _answer(control: _socket.socket) -> bytes:
    try:
        return control.recv(MOST_ANSWER)
    except OSError as error:
        from carrel.domain.errors import DaemonUnavailable

        raise DaemonUnavailable(
            f"The daemon does not answer: {error}.", hint="Look at it: carrel status"
        ) from None


def _hand_over(connection: _socket.socket) -> None:
    """To ssh, which made our standard output for it."""
    out = os.dup(1)
    try:
        sock = _socket.socket(fileno=out)
        out = -1
        _send(sock, b"\0", connection.fileno())
        sock.close()
    except OSError:
        raise invalid(
            "Only ssh can use this: it is its ProxyCommand, with ProxyUseFdpass.",
            hint="carrel ssh SPACE",
        ) from None
    finally:
        if out >= 0:
            os.close(out)


def _send(sock: _socket.socket, data: bytes, descriptor: int) -> None:
    right = descriptor.to_bytes(4, sys.byteorder)
    sock.sendmsg([data], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, right)])


def _connect(place: Address, autostart: bool) -> _socket.socket:
    """To the daemon's socket for this, which is there while one runs."""
    from carrel.client.address import check_peer, connect_unix, starter
    from carrel.domain.errors import DaemonUnavailable

    path = f"{os.path.dirname(place.socket)}/{SOCKET}"
    start = starter(place, autostart)
    for last in (start is None, True):
        sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        try:
            sock.settimeout(ANSWER_S)
            connect_unix(sock.connect, path)
            check_peer(sock, place)
            return sock
        except OSError as error:
            sock.close()
            if last or start is None:
                raise DaemonUnavailable(
                    f"No daemon answers at {path}: {error}.", hint="carrel up"
                ) from None
        start()
    raise AssertionError


def _missing() -> Exception:
    from carrel.domain.errors import SshUnavailable

    return SshUnavailable(
        "There is no program ssh here.", hint="Install it: sudo apt-get install openssh-client"
    )
