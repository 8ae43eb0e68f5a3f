"""The daemon of this machine: start, stop and describe it; tokens for it; completion for shells."""

from __future__ import annotations

import os

from carrel.cli.call import NO_DAEMON, VerbCall, invalid
from carrel.cli.output import AnswerTable, fields, flush
from carrel.cli.spec import Argument, Option, Verb
from carrel.cli.values import age_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from carrel.client.address import Address
    from carrel.daemon.service import ServiceState

SHELLS = ("bash", "zsh", "fish")


@Verb(
    Option("--foreground", "Stay in the foreground, and log to this terminal."),
    Option("--listen HOST:PORT", "Listen on TCP too, for clients with a token."),
)
def up(call: VerbCall) -> None:
    """Start the daemon in the background.

    Other commands do this by themselves. It is no error when it runs already.
    """
    data, listen = _own_data(call), call.text("listen")
    if call.flag("foreground"):
        from carrel.daemon import places

        words = places.command(data) + (["--listen", listen] if listen else [])
        flush()
        os.execv(words[0], words)
    from carrel.daemon import control
    from carrel.domain.errors import DaemonRunning

    try:
        control.start(data, listen or None)
    except DaemonRunning:
        # That it runs is all that was asked for, unless it is to listen elsewhere.
        if listen:
            raise
    found = control.status(data)
    where = f" and on {found.address}" if found.address else ""
    call.answer(
        {"running": True, "pid": found.pid, "address": found.address, "data": data},
        lambda _: f"The daemon runs (process {found.pid}), for {data}{where}.",
    )


def _own_data(call: VerbCall) -> str:
    """The data folder whose daemon is meant. `MessageInvalid` when it is somebody else's."""
    place = call.place
    if not place.data:
        raise invalid(
            f"The daemon at {place} cannot be started or stopped from here.",
            hint="Unset CARREL_URL, or name a data folder: carrel --data FOLDER up",
        )
    return place.data


@Verb()
def down(call: VerbCall) -> None:
    """Stop the daemon; what runs in spaces goes on, and the next daemon takes it over."""
    from carrel.daemon import control

    data = _own_data(call)
    told: list[str] = []

    def tell(doing: str) -> None:
        if doing and doing not in told[-1:]:
            told.append(doing)
            call.note(f"The daemon ends when it is done: {doing}.")

    pid = control.stop(data, told=tell)
    if call.json:
        call.show({"running": False, "pid": pid, "data": data})
    elif pid is None:
        call.note(f"No daemon runs for {data}.")
    else:
        call.say(f"The daemon (process {pid}) has ended.")


@Verb()
def status(call: VerbCall) -> int:
    """Say whether the daemon runs, without starting it.

    The exit code is 6 when it does not run.
    """
    from carrel.client.http import operation
    from carrel.client.link import Link
    from carrel.domain.errors import DaemonUnavailable

    place = call.place
    link = Link(place)
    try:
        info = link.json(operation("daemon.info"))
        total = link.json(operation("spaces.list", query=[("limit", 1)]))["total"]
    except DaemonUnavailable as error:
        content = {"running": False, "detail": error.message, "data": place.data}
        call.answer(content, lambda content: content["detail"])
        return NO_DAEMON
    finally:
        link.close()
    content = {"running": True, **info, "address": _address(place), "spaces": total}
    call.answer(content, lambda content: _describe(place, content))
    return 0


def _describe(place: Address, info: dict[str, Any]) -> str:
    return fields(
        [
            ("daemon", f"{info['version']}, process {info['pid'] or '-'}"),
            ("since", f"{info['started_at']} ({age_of(info['started_at'])})"),
            ("data", info["data"] or ""),
            ("socket", place.socket),
            ("address", info["address"]),
            ("spaces", str(info["spaces"])),
            ("scope", info["scope"] if info["scope"] != "admin" else ""),
        ]
    )


def _address(place: Address) -> str:
    """On TCP, if it listens there."""
    if not place.data:
        return "" if place.socket else place.authority
    from carrel.daemon import control

    return control.status(place.data).address


# As a service of systemd


@Verb()
def service_install(call: VerbCall) -> None:
    """Have systemd start the daemon at login (as root: at boot), and keep it.

    Commands start this service from now on. What runs in spaces goes on meanwhile.
    """
    from carrel.daemon import service

    data = _own_data(call)
    service.install(data)
    found = service.state(data)
    _show_service(call, found)
    if os.geteuid() != 0:
        call.note_logout()


@Verb()
def service_remove(call: VerbCall) -> None:
    """Take the service away; the next command starts a daemon by itself."""
    from carrel.daemon import service

    data = _own_data(call)
    if not service.remove(data):
        call.note(f"No service is installed for {data}.")
    _show_service(call, service.state(data))


@Verb()
def service_status(call: VerbCall) -> None:
    """Say whether the daemon is a service, and whether that runs."""
    from carrel.daemon import service

    _show_service(call, service.state(_own_data(call)))


def _show_service(call: VerbCall, found: ServiceState) -> None:
    def text(_: object) -> str:
        if not found.installed:
            return "There is no service: commands start the daemon when they need it."
        login = "at boot" if os.geteuid() == 0 else "at login"
        starts = f"started {login}" if found.enabled else "not started by itself"
        return f"{found.unit} is {found.active}, and {starts} ({found.path})."

    call.answer(found._asdict(), text)


# Tokens


@Verb(
    Option("--name TEXT", "Name it.", to="name"),
    Option("--label K=V", "Limit it to spaces with this label.", kind="text"),
    Option("--space SPACE", "Limit it to this space."),
    Option("--ttl TIME", "Let it expire after this time.", to="ttl_s"),
)
def token_create(call: VerbCall) -> None:
    """Create a token for the API on TCP; its secret is printed once.

    Without --label and --space it is an administrator's token.
    """
    label, space = call.text("label"), call.text("space")
    if label and space:
        raise invalid(
            "--label and --space cannot be used together.",
            hint="Give one of them: a token has one scope.",
        )
    scope = f"label:{label}" if label else f"space:{space}" if space else "admin"
    token = call.ask("tokens.create", content={"scope": scope, **call.content()})
    call.answer(token, lambda token: token["secret"])
    if not call.json:
        call.note(f"{token['id']}, scope {token['scope']}. It is not shown again.")


token_ls = Verb(
    help="List tokens.",
    ask="tokens.list",
    text=AnswerTable(
        "tokens",
        {
            "ID": "id",
            "NAME": "name",
            "SCOPE": "scope",
            "AGE": lambda token: age_of(token["created_at"]),
            "USED": lambda token: age_of(token["used_at"]),
            "EXPIRES": "expires_at",
        },
        shrink=("NAME", "SCOPE"),
        empty="There are no tokens.",
    ),
)
token_revoke = Verb(
    Argument("token"),
    help="Revoke a token, by its id or name.",
    ask="tokens.revoke",
    text=lambda token: str(token["id"]),
)


# Completion


@Verb(Argument("shell"))
def completion(call: VerbCall) -> None:
    """Print the completion script of a shell: bash, zsh or fish.

    bash: eval "$(carrel completion bash)" in ~/.bashrc. zsh: the same in ~/.zshrc. fish:
    carrel completion fish > ~/.config/fish/completions/carrel.fish
    """
    from click.shell_completion import get_completion_class

    from carrel.cli.main import COMPLETE_VARIABLE
    from carrel.cli.program import NAME, make_program

    shell = call.text("shell")
    kind = get_completion_class(shell)
    if kind is None or shell not in SHELLS:
        raise invalid(
            f"There is no completion for the shell {shell!r}.", hint=f"Use {', '.join(SHELLS)}."
        )
    source = kind(make_program(), {}, NAME, COMPLETE_VARIABLE).source()
    call.answer({"shell": shell, "source": source}, lambda found: found["source"])
