"""Overlays of an ordinary user, in namespaces that are held for him.

An ordinary user may mount only in a user namespace of his own, and the mount is gone when
nobody holds that any more. The launcher holds it by descriptors, without a process.
"""

from __future__ import annotations

import os
import socket

from carrel.launcher import wire
from carrel.launcher.loop import Loop
from carrel.launcher.messages import Answer, HoldRequest, KeyRequest, NoFields, failure
from carrel.linux import mounts, namespaces


class HeldMounts:
    """Overlays of an ordinary user, one namespace each."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._held: dict[str, dict[str, int]] = {}

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
            answer({}, [])

        self._loop.fork(lambda: _be_mounted(request, theirs))
        theirs.close()
        self._loop.watch(ours.fileno(), on_ready)

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
        if held is None:
            answer({}, [])
            return
        wait, go = os.pipe2(os.O_CLOEXEC)
        child = self._loop.fork(lambda: _close_last(held, wait, go))
        for descriptor in (*held.values(), wait, go):
            os.close(descriptor)
        self._loop.on_exit(child, lambda _status, _usage: answer({}, []))


def _close_last(held: dict[str, int], wait: int, go: int) -> None:
    """Waits until the launcher has let go, then is the last to."""
    os.close(go)
    os.read(wait, 1)
    for descriptor in held.values():
        os.close(descriptor)
    os._exit(0)


def _be_mounted(request: HoldRequest, channel: socket.socket) -> None:
    try:
        namespaces.unshare_user(namespaces.CLONE_NEWNS)
        # A host's unmount reaches us, so that we hold nobody's disk; ours stays here.
        namespaces.set_propagation(namespaces.MS_SLAVE)
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
