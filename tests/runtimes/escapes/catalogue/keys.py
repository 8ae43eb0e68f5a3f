"""Keyrings, which no namespace divides."""

from __future__ import annotations

import ctypes
import errno

from tests.runtimes.escapes.inside import USER, Targets, escape, syscall

KEYCTL_GET_KEYRING_ID, KEYCTL_JOIN_SESSION, KEYCTL_READ = 0, 1, 11

PROCESS, SESSION, OF_USER = -2, -3, -4


@escape("keyrings.add", USER)
def add(_targets: Targets) -> str:
    return f"key {syscall('add_key', b'user', b'carrel-escape', b'x', 1, PROCESS)}"


@escape("keyrings.read_one_of_the_host", USER)
def read_one_of_the_host(targets: Targets) -> str:
    content = ctypes.create_string_buffer(64)
    count = syscall("keyctl", KEYCTL_READ, targets.key, ctypes.byref(content), 64, 0)
    return f"read {content.raw[:count]!r}"


@escape("keyrings.search", USER)
def search(_targets: Targets) -> str:
    try:
        return f"found {syscall('request_key', b'user', b'carrel-escape', None, 0)}"
    except OSError as error:
        if error.errno == errno.ENOKEY:
            return "searched the keyrings"
        raise


@escape("keyrings.of_the_session", USER)
def of_the_session(_targets: Targets) -> str:
    return f"keyring {syscall('keyctl', KEYCTL_GET_KEYRING_ID, SESSION, 1)}"


@escape("keyrings.of_the_user", USER)
def of_the_user(_targets: Targets) -> str:
    return f"keyring {syscall('keyctl', KEYCTL_GET_KEYRING_ID, OF_USER, 1)}"


@escape("keyrings.join_a_session", USER)
def join_a_session(_targets: Targets) -> str:
    return f"keyring {syscall('keyctl', KEYCTL_JOIN_SESSION, b'carrel-escape')}"
