"""Mount namespaces that the launcher holds by descriptors, without a process.

An ordinary user may mount overlays only in a user namespace of his own, and the mount is gone
when nobody holds that any more. Where that user has a range of further ids, one user namespace with
them is enough for all mounts. Root's sandboxes are set up where little is mounted.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable

from carrel.launcher import confine, wire
from carrel.launcher.loop import Loop
from carrel.launcher.messages import Answer, HoldRequest, KeyRequest, NoFields, failure
from carrel.linux import mounts, namespaces, subids

MAKE_S = 5.0
"""It takes a millisecond for each mount of the host."""
_NO_RANGE = "the range of ids of its image cannot be had any more: see /etc/subuid and /etc/subgid"
RANGE_S = 10.0
"""Two small programs of the system run for it, once."""


class HeldMounts:
    """Overlays of an ordinary user, one namespace each."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._held: dict[str, dict[str, int]] = {}
        self._range: int | None = None
        """The user namespace with further ids, once one is needed and can be had."""
        self._refused: subids.SubIds | None = None
        """Those that were tried."""
        self._ranged: set[str] = set()

    def __len__(self) -> int:
        return len(self._held)

    def tell_keys(self, _request: NoFields, _fds: list[int], answer: Answer) -> None:
        answer({"keys": sorted(self._held)}, [])

    def namespace(self, key: str) -> dict[str, int] | None:
        return self._held.get(key)

    def hold(self, request: HoldRequest, _fds: list[int], answer: Answer) -> None:
        if request["key"] in self._held:
            answer({}, [])
            return
        beside = self._held.get(request.get("beside", ""))
        if beside is None and request.get("beside"):
            answer({"problem": failure("mount", "what it is to be beside is not mounted")}, [])
            return
        users = self._users() if beside is None else None
        if request.get("ranged") and users is None and request.get("beside") not in self._ranged:
            answer({"problem": failure("mount", _NO_RANGE)}, [])
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)

        def on_ready() -> None:
            self._loop.unwatch(ours.fileno())
            body, descriptors = wire.receive_descriptors(ours, 4096, 3)
            ours.close()
            if len(descriptors) != 3:
                for descriptor in descriptors:
                    os.close(descriptor)
                text = body.decode(errors="replace") or "the helper died"
                answer({"problem": failure("mount", text)}, [])
                return
            names = ("user", "mnt", "root")
            self._held[request["key"]] = dict(zip(names, descriptors, strict=True))
            if users is not None:
                self._ranged.add(request["key"])
            answer({}, [])

        self._loop.fork(lambda: _be_mounted(request, beside, users, theirs))
        theirs.close()
        self._loop.watch(ours.fileno(), on_ready)

    def _users(self) -> int | None:
        """None where the user has no further ids: each mount has a namespace with one id then."""
        found = subids.granted() if self._range is None else None
        if found not in (None, self._refused):
            self._refused = found
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            with ours:
                self._loop.fork(lambda: _be_range(theirs))
                theirs.close()
                ours.settimeout(RANGE_S)
                with contextlib.suppress(OSError):
                    self._range = next(iter(wire.receive_descriptors(ours, 1, 1)[1]), None)
        return self._range

    def open(self, request: KeyRequest, _fds: list[int], answer: Answer) -> None:
        held = self._held.get(request["key"])
        if held is None:
            answer({"problem": failure("open", "not mounted")}, [])
        else:
            answer({}, [held["root"]])

    def release(self, request: KeyRequest, _fds: list[int], answer: Answer) -> None:
        """The last close unmounts, which writes the disk's caches out: a child does that, and
        the answer comes when it is done."""
        held = self._held.pop(request["key"], None)
        self._ranged.discard(request["key"])
        if held is None:
            answer({}, [])
            return
        wait, go = os.pipe2(os.O_CLOEXEC)
        child = self._loop.fork(lambda: _close_last(held, wait, go))
        for descriptor in (*held.values(), wait, go):
            os.close(descriptor)
        self._loop.on_exit(child, lambda _status, _usage: answer({}, []))


class BareNamespaces:
    """Mount namespaces with no more than bubblewrap takes from the host: it reads the whole mount
    table for each mount that it makes, and a host may have hundreds."""

    def __init__(self, fork: Callable[[Callable[[], None]], int]) -> None:
        self._fork = fork
        self._made: dict[tuple[str, ...], int | None] = {}

    def get(self, kept: list[str]) -> int | None:
        """One with what is mounted at, above and below these paths; None where that fails. It
        holds for good: our own mounts never change."""
        key = tuple(kept)
        if key not in self._made:
            self._made[key] = self._make(key)
        return self._made[key]

    def _make(self, kept: tuple[str, ...]) -> int | None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with ours:
            self._fork(lambda: _be_bare(kept, theirs))
            theirs.close()
            ours.settimeout(MAKE_S)
            with contextlib.suppress(OSError):
                return next(iter(wire.receive_descriptors(ours, 1, 1)[1]), None)
        return None


def _be_bare(kept: tuple[str, ...], channel: socket.socket) -> None:
    namespaces.unshare(namespaces.CLONE_NEWNS)
    real = [os.path.join(os.path.realpath(path), "") for path in kept]
    for target in mounts.mount_points():
        folder = os.path.join(target, "")
        if not any(folder.startswith(path) or path.startswith(folder) for path in real):
            # What is locked by the container that we are in stays.
            with contextlib.suppress(OSError):
                mounts.detach_all(target)
    namespace = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    socket.send_fds(channel, [b"."], [namespace])
    os._exit(0)


def _close_last(held: dict[str, int], wait: int, go: int) -> None:
    """Waits until the launcher has let go, then is the last to."""
    os.close(go)
    os.read(wait, 1)
    for descriptor in held.values():
        os.close(descriptor)
    os._exit(0)


def _be_range(channel: socket.socket) -> None:
    confine.reset_signals()
    subids.enter()
    users = os.open("/proc/self/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    socket.send_fds(channel, [b"."], [users])
    os._exit(0)


def _be_mounted(
    request: HoldRequest,
    beside: dict[str, int] | None,
    users: int | None,
    channel: socket.socket,
) -> None:
    try:
        if beside is not None:
            namespaces.setns(beside["user"], namespaces.CLONE_NEWUSER)
            namespaces.setns(beside["mnt"], namespaces.CLONE_NEWNS)
        else:
            if users is None:
                namespaces.unshare_user(namespaces.CLONE_NEWNS)
            else:
                namespaces.setns(users, namespaces.CLONE_NEWUSER)
                namespaces.unshare(namespaces.CLONE_NEWNS)
            # A host's unmount reaches us, so that we hold nobody's disk; ours stays here.
            namespaces.set_propagation(namespaces.MS_SLAVE)
        if request.get("ranged"):
            # Only in here they are who they are.
            top = os.stat(request["lowers"][-1])
            os.chown(request["upper"], top.st_uid, top.st_gid)
        _mount(request)
        flags = os.O_CLOEXEC
        descriptors = [os.open(f"/proc/self/ns/{kind}", flags) for kind in ("user", "mnt")]
        descriptors.append(os.open(request["target"], os.O_PATH | os.O_DIRECTORY | flags))
        socket.send_fds(channel, [b"{}"], descriptors)
    except OSError as error:
        channel.send(str(error).encode())
        os._exit(1)
    os._exit(0)


def _mount(request: HoldRequest) -> None:
    lowers = mounts.open_layers(request["lowers"])
    upper, work = mounts.open_layers([request["upper"], request["work"]])
    overlay = mounts.Overlay(tuple(lowers), upper, work, (("userxattr", ""),))
    mounts.mount_overlay(overlay, request["target"])
