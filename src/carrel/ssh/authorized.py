"""The keys that open the listener, and where it listens: two small files beside the user's own key.

They are read anew each time, so what somebody restores or removes there holds at once.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from carrel.domain.access import Scope, ScopeKind
from carrel.domain.errors import SshKeyInvalid
from carrel.domain.ssh import SshKeyRecord
from carrel.ssh.keys import as_unavailable, make_key, put_text

KEYS, LISTENER, HOST_KEY = "keys.json", "listener.json", "listener_key"
MOST_BYTES = 16_384
"""Of one public key; the largest of RSA has three thousand."""
_CURVES = {"ecdsa-sha2-nistp256": 65, "ecdsa-sha2-nistp384": 97, "ecdsa-sha2-nistp521": 133}
"""With the size of a point."""
_HARDWARE = ("sk-ssh-ed25519@openssh.com", "sk-ecdsa-sha2-nistp256@openssh.com")
_TAKEN = ("ssh-ed25519", "ssh-rsa", *_CURVES, *_HARDWARE)
LEAST_RSA = 2048
MOST_RSA = 16_384
"""Bits; more takes the listener seconds to check."""
HINT = "Give it as it stands in ~/.ssh/id_ed25519.pub: ssh-ed25519 AAAA… NAME"


class AuthorizedKeys:
    """Implements `carrel.domain.ssh.SshBook`."""

    def __init__(self, data: Path) -> None:
        self._folder = data / "ssh"

    def keys(self) -> Sequence[SshKeyRecord]:
        """None by a file that is damaged: then nobody gets in."""
        try:
            return [_record(one) for one in self._read(KEYS, [])]
        except (TypeError, KeyError, ValueError):
            return []

    def put_keys(self, keys: Sequence[SshKeyRecord]) -> None:
        self._put(KEYS, [asdict(one) for one in keys])

    def port(self) -> int:
        found = self._read(LISTENER, {})
        port = found.get("port", 0) if isinstance(found, dict) else 0
        return port if isinstance(port, int) else 0

    def put_port(self, port: int) -> None:
        self._put(LISTENER, {"port": port})

    def host_key(self) -> str:
        with as_unavailable():
            self._folder.mkdir(mode=0o700, exist_ok=True)
            if not (self._folder / HOST_KEY).exists():
                make_key(self._folder / HOST_KEY, "carrel")
            return (self._folder / f"{HOST_KEY}.pub").read_text().strip()

    def read_key(self, text: str) -> tuple[str, str, str]:
        """One line, without options before the key: they would be followed by nobody here."""
        lines = [line for line in text.splitlines() if line.strip()]
        if len(lines) != 1 or len(text) > MOST_BYTES:
            raise _refused("This is not one public key.")
        kind, _, rest = lines[0].strip().partition(" ")
        blob, _, comment = rest.strip().partition(" ")
        if kind not in _TAKEN:
            raise _refused(_why_not(kind))
        try:
            raw = base64.b64decode(blob, validate=True)
            fields = _fields(raw)
        except (binascii.Error, ValueError):
            raise _refused("The key is damaged.") from None
        if not fields or fields[0] != kind.encode() or not _is_sound(kind, fields):
            raise _refused("The key is damaged, or too weak: RSA needs 2048 bits.")
        return kind, base64.b64encode(raw).decode(), comment.strip()

    def _read(self, name: str, nothing: Any) -> Any:
        with as_unavailable():
            try:
                text = (self._folder / name).read_text()
            except FileNotFoundError:
                return nothing
            try:
                return json.loads(text)
            except ValueError:
                return nothing

    def _put(self, name: str, found: object) -> None:
        with as_unavailable():
            self._folder.mkdir(mode=0o700, exist_ok=True)
            put_text(self._folder / name, json.dumps(found))
            descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _record(found: dict[str, Any]) -> SshKeyRecord:
    scopes = tuple(Scope(ScopeKind(one["kind"]), one["value"]) for one in found["scopes"])
    return SshKeyRecord(**{**found, "scopes": scopes})


def _why_not(kind: str) -> str:
    if "cert-v01" in kind:
        return "Certificates are not taken."
    if kind.startswith("-----BEGIN"):
        return "This is a private key, which stays with its owner."
    if kind == "ssh-dss":
        return "Keys of the kind ssh-dss are too weak."
    return "This is no public key of OpenSSH, or something is before it."


def _refused(why: str) -> SshKeyInvalid:
    return SshKeyInvalid(why, hint=HINT)


def _fields(raw: bytes) -> list[bytes]:
    """Raises ValueError when something is left over."""
    found = []
    at = 0
    while at < len(raw):
        length = int.from_bytes(raw[at : at + 4], "big")
        if at + 4 + length > len(raw):
            raise ValueError
        found.append(raw[at + 4 : at + 4 + length])
        at += 4 + length
    return found


def _is_sound(kind: str, fields: Sequence[bytes]) -> bool:
    match kind:
        case "ssh-ed25519":
            return len(fields) == 2 and len(fields[1]) == 32
        case "sk-ssh-ed25519@openssh.com":
            return len(fields) == 3 and len(fields[1]) == 32
        case "sk-ecdsa-sha2-nistp256@openssh.com":
            return len(fields) == 4 and fields[1] == b"nistp256" and _is_point(fields[2], 65)
        case "ssh-rsa":
            return len(fields) == 3 and _is_strong(fields[1], fields[2])
        case _:
            curve = kind.removeprefix("ecdsa-sha2-").encode()
            return len(fields) == 3 and fields[1] == curve and _is_point(fields[2], _CURVES[kind])


def _is_point(field: bytes, size: int) -> bool:
    return len(field) == size and field[0] == 4


def _is_strong(exponent: bytes, modulus: bytes) -> bool:
    bits = int.from_bytes(modulus, "big").bit_length()
    power = int.from_bytes(exponent, "big")
    return LEAST_RSA <= bits <= MOST_RSA and power > 2 and power % 2 == 1 and len(exponent) <= 8
