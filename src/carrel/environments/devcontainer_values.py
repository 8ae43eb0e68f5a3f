"""The values of a devcontainer.json that may be written in several ways.

Each function takes the value as it was parsed, or None when the key is missing, and drops
what is malformed with a complaint.
"""

from __future__ import annotations

from collections.abc import Callable

from carrel.environments.malformed import Malformed
from carrel.environments.ports import parse_ports

Complain = Callable[[str], None]

OWN_HOSTS = ("", "localhost", "127.0.0.1", "0.0.0.0")


def as_strings(value: object, complain: Complain) -> list[str]:
    """A string or a list of strings."""
    values = value if isinstance(value, list) else [] if value is None else [value]
    texts = [text for text in values if isinstance(text, str) and text]
    if len(texts) < len(values):
        complain("what is not a string was left out.")
    return texts


def as_commands(value: object, complain: Complain) -> list[tuple[str, tuple[str, ...]]]:
    """A line for the shell, an argument list, or an object of several, which have names."""
    several = value if isinstance(value, dict) else {"": value}
    commands = []
    for name, written in several.items():
        try:
            argv = _argv(written)
        except Malformed as error:
            complain(f"{name}: {error.message}" if name else error.message)
            continue
        if argv:
            commands.append((str(name), argv))
    return commands


def _argv(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        argv: tuple[str, ...] = ("/bin/sh", "-c", value) if value.strip() else ()
    elif isinstance(value, list) and all(isinstance(word, str) for word in value):
        argv = tuple(value)
    else:
        raise Malformed("it is neither a string nor a list of strings.")
    if any("\0" in word for word in argv):
        raise Malformed("it has a zero byte in it.")
    return argv


def as_ports(value: object, complain: Complain) -> list[tuple[int, str]]:
    """Numbers, `"host:port"`, and of `appPort` also `"outer:inner"`; with the service that
    another port belongs to."""
    ports = []
    for written in value if isinstance(value, list) else [] if value is None else [value]:
        try:
            ports += _port(written)
        except Malformed as error:
            complain(error.message)
    return ports


def _port(value: object) -> list[tuple[int, str]]:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise Malformed("a port is a number or a string.")
    host, _, port = str(value).rpartition(":")
    service = "" if host in OWN_HOSTS or host.rpartition(":")[2].isdigit() else host
    return [(number, service) for number, _ in parse_ports(port)]


def as_variables(value: object, complain: Complain) -> list[tuple[str, str | None]]:
    """Names with strings, or None for one that is to be unset."""
    if value is None:
        return []
    if not isinstance(value, dict):
        complain("it is not an object.")
        return []
    variables: list[tuple[str, str | None]] = []
    for name, text in value.items():
        if not name or "=" in name or "\0" in name:
            complain(f"{name!r} cannot be the name of a variable.")
        elif text is not None and (not isinstance(text, str) or "\0" in text):
            complain(f"{name} is not a string that can be set.")
        else:
            variables.append((name, text))
    return variables
