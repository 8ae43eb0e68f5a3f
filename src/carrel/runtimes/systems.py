"""Sandboxes whose root is the system of an image: bubblewrap's command line, and what the root in
there may do.

As root, bubblewrap starts as the root of a user namespace with all ids of the space, so that the
image's users are there and packages can be installed. That root is nobody on the host. Ordinary
users have one id: the image's user, whoever that is, is them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from carrel.domain.errors import SandboxUnavailable
from carrel.domain.runtimes import Bind, Command, Network, SandboxSpec
from carrel.domain.systems import System
from carrel.domain.trees import TreeMount
from carrel.linux.libc import MACHINE
from carrel.runtimes.arguments import devices, held_by, memory_files
from carrel.runtimes.requests import RangedStart
from carrel.runtimes.sandbox import (
    FILTERED,
    HUB,
    PATH,
    WORKSPACE,
    SandboxFolders,
    is_below,
)

if TYPE_CHECKING:
    from carrel.launcher.messages import LinkPoint, MountPoint

USERS = "users"
"""The name under which the user namespace goes along with the mounts."""
OWN_ETC = ("resolv.conf", "hosts", "hostname")
"""Files of /etc that are Carrel's, whatever the image has there."""
HOLD = "/dev/hold"
_FOLDERS = ("proc", "dev", "run", "etc", "tmp")
_KEPT_OUT = ("/proc", "/dev", "/run", "/tmp", WORKSPACE)
"""Where nothing else is shown. What is in /tmp others of the space may change meanwhile."""

# fmt: off
_CAPABILITIES = {
    "CHOWN": 0, "DAC_OVERRIDE": 1, "FOWNER": 3, "FSETID": 4, "KILL": 5, "SETGID": 6, "SETUID": 7,
    "NET_BIND_SERVICE": 10,
}
# fmt: on
KEPT = sum(1 << bit for bit in _CAPABILITIES.values())
"""What the root of an image needs to install packages and to run services as others. All of it is
over ids of the space alone."""


def capabilities(system: System) -> int:
    """Of the commands: only its root has any."""
    return KEPT if system.first_id is not None and system.uid == 0 else 0


def places(spec: SandboxSpec) -> list[str]:
    """Where it shows its tree."""
    return [place for place, _writable in _places(spec)]


def _places(spec: SandboxSpec) -> list[tuple[str, bool]]:
    """With whether it may be written there."""
    if spec.service is None:
        return [(place, True) for place in _free_places(spec)]
    linked = [(WORKSPACE, not spec.service.read_only)] if spec.service.links else []
    return [*linked, *spec.service.tree_at]


def _free_places(spec: SandboxSpec) -> list[str]:
    also = spec.also_at
    free = also.startswith("/") and os.path.normpath(also) == also and also != "/"
    if not free or any(
        is_below(also, one) or is_below(one, also) for one in (*_KEPT_OUT, "/etc", "/sys")
    ):
        return [WORKSPACE]
    return [WORKSPACE, also]


def shown_binds(binds: Iterable[Bind], *, service: bool = False) -> list[Bind]:
    """Those of a service were looked at when its file was read."""
    if service:
        return list(binds)
    return [bind for bind in binds if not any(is_below(bind.target, one) for one in _KEPT_OUT)]


def mount_points(spec: SandboxSpec, binds: list[Bind], system: System) -> list[MountPoint]:
    """All that something is mounted on: a link of the image would lead it elsewhere."""
    above = _above(system)
    wanted = [(name, True) for name in _FOLDERS]
    if spec.service is None:
        wanted.append((HUB[1:], True))
    else:
        wanted += [(place[1:], True) for place in spec.service.memory]
    wanted += [(f"etc/{name}", False) for name in OWN_ETC]
    wanted += [(place[1:], True) for place in places(spec)]
    wanted += [(bind.target[1:], bind.source.is_dir()) for bind in binds]
    return [{"above": above, "path": path, "folder": folder} for path, folder in wanted]


def _above(system: System) -> str:
    """Where what is made is seen in it: an ordinary user's is mounted in a namespace of the
    launcher's, where it is made only for those with a range of ids."""
    seen = os.geteuid() == 0 or system.first_id is not None
    return str(system.root if seen else system.folder / "upper")


def links(spec: SandboxSpec, system: System) -> list[LinkPoint]:
    """What of the tree a service sees elsewhere. By a mount the host would have to follow a path
    that others write; a link is followed inside."""
    wanted = spec.service.links if spec.service is not None else {}
    above = _above(system)
    return [
        {"above": above, "path": place[1:], "target": f"{WORKSPACE}/{target}"}
        for place, target in wanted.items()
    ]


def has_own_range(system: System) -> bool:
    """Of an ordinary user: only within a namespace of the launcher's its files can be reached."""
    return system.first_id is not None and os.geteuid() != 0


def ranged_start(spec: SandboxSpec, system: System, paths: dict[str, str]) -> RangedStart:
    own, host, first = system.ids
    return RangedStart(paths, {"own": own, "host": host, "first": first}, links(spec, system))


def arguments(
    program: str,
    spec: SandboxSpec,
    paths: dict[str, str],
    binds: list[Bind],
    *,
    survive: bool,
    pod: bool,
) -> list[str]:
    """`paths` says where bubblewrap finds what the sandbox shows, by name. `survive` is whether it
    goes on without its launcher."""
    system = spec.system
    assert system is not None
    argv = [program, "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    if system.first_id is None:
        argv += ["--unshare-user", "--disable-userns"]
        argv += ["--uid", str(system.uid), "--gid", str(system.gid)]
    if not survive:
        argv.append("--die-with-parent")
    if spec.network is Network.NONE and not pod:
        argv.append("--unshare-net")
    argv += ["--cap-drop", "ALL", "--clearenv", "--hostname", "carrel"]
    argv += ["--bind", paths["system"], "/", "--dev", "/dev", "--proc", "/proc"]
    argv += devices(spec, "--ro-bind", paths["hold"], HOLD)
    argv += chain.from_iterable(_shown(spec, paths, binds))
    return [*argv, *held_by(HOLD)]


def _shown(spec: SandboxSpec, paths: dict[str, str], binds: list[Bind]) -> list[list[str]]:
    shown = [["--ro-bind", f"{paths['etc']}/{name}", f"/etc/{name}"] for name in OWN_ETC]
    if spec.service is None:
        # What an agent leaves there for its commands, they find.
        shown += [["--ro-bind", paths["hub"], HUB], ["--bind", paths["tmp"], "/tmp"]]
    else:
        size = str(memory_files(spec.limits))
        shown += [
            ["--perms", "1777", "--size", size, "--tmpfs", place] for place in spec.service.memory
        ]
    shown += [
        ["--bind" if writable else "--ro-bind", paths["tree"], place]
        for place, writable in _places(spec)
    ]
    shown += [
        ["--bind" if bind.writable else "--ro-bind", paths[f"bind{number}"], bind.target]
        for number, bind in enumerate(binds)
    ]
    return shown


ONE_ID = {**FILTERED, "TAR_OPTIONS": "--no-same-owner --no-same-permissions"}
"""With one id, a root that unpacks an archive can give nothing to others, nor set-id bits."""


def environment(spec: SandboxSpec, command: Command, system: System) -> dict[str, str]:
    """The image's own, below what the space says and the command brings."""
    return {
        "PATH": PATH,
        "LANG": "C.UTF-8",
        "TMPDIR": "/tmp",
        **system.env,
        "HOME": system.home,
        "USER": system.user,
        "LOGNAME": system.user,
        "SHELL": system.shell,
        "CARREL_SPACE": spec.pod or spec.sandbox_id,
        **(ONE_ID if system.first_id is None else {}),
        **spec.env,
        **command.env,
    }


# The program that holds the namespaces. An image need not have one that runs without its libraries,
# so it is ours, and so small that it is written here: it ignores SIGCHLD, so that nothing stays of
# processes that become its children, echoes one byte, and waits for good.

_X86_64 = bytes.fromhex(
    "6a006a006a006a01"  # push mask, restorer, flags, SIG_IGN
    "4889e6"  # mov rsi, rsp
    "6a115f"  # push 17; pop rdi
    "31d2"  # xor edx, edx
    "6a08415a"  # push 8; pop r10
    "6a0d58"  # push 13; pop rax
    "0f05"  # rt_sigaction(SIGCHLD, rsp, 0, 8)
    "50"  # push rax, for room
    "4889e6"  # mov rsi, rsp
    "31ff"  # xor edi, edi
    "6a015a"  # push 1; pop rdx
    "31c0"  # xor eax, eax
    "0f05"  # read(0, rsp, 1)
    "6a015f"  # push 1; pop rdi
    "6a0158"  # push 1; pop rax
    "0f05"  # write(1, rsp, 1)
    "6a2258"  # push 34; pop rax
    "0f05"  # pause()
    "ebf9"  # and again
)


def _aarch64() -> bytes:
    def put(register: int, value: int) -> int:
        return 0xD2800000 | value << 5 | register  # mov xN, #value

    supervisor, stack = 0xD4000001, 0x910003E1  # svc #0; mov x1, sp
    code = [0xD100C3FF]  # sub sp, sp, #48
    # str x0, [sp]; stp xzr, xzr, [sp, #8]; stp xzr, xzr, [sp, #24]
    code += [put(0, 1), 0xF90003E0, 0xA900FFFF, 0xA901FFFF]
    code += [put(0, 17), stack, put(2, 0), put(3, 8), put(8, 134), supervisor]
    for descriptor, number in ((0, 63), (1, 64)):  # read, write
        code += [put(0, descriptor), stack, put(2, 1), put(8, number), supervisor]
    waits = [put(register, 0) for register in range(4)]  # ppoll(0, 0, 0, 0)
    waits += [put(8, 73), supervisor]
    back = 0x14000000 | (-len(waits) & 0x3FFFFFF)  # b, to the first of them
    return b"".join(word.to_bytes(4, "little") for word in (*code, *waits, back))


_BASE = 0x400000


def _program() -> bytes:
    """One segment, with the headers of the file in front of the code."""
    machine, code = {"x86_64": (62, _X86_64), "aarch64": (183, _aarch64())}[MACHINE]
    head = 64 + 56
    size = head + len(code)

    def words(*parts: tuple[int, int]) -> bytes:
        return b"".join(value.to_bytes(length, "little") for value, length in parts)

    ident = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    header = words(
        *((2, 2), (machine, 2), (1, 4), (_BASE + head, 8), (64, 8), (0, 8), (0, 4)),
        *((64, 2), (56, 2), (1, 2), (64, 2), (0, 2), (0, 2)),
    )
    segment = words((1, 4), (5, 4), (0, 8), (_BASE, 8), (_BASE, 8), (size, 8), (size, 8), (4096, 8))
    return ident + header + segment + code


def holder(data: Path) -> Path:
    """The file with it; made once. Raises `SandboxUnavailable`."""
    path = data / "etc" / f"holder-{MACHINE}"
    if not path.exists():
        try:
            content = _program()
        except KeyError:
            raise SandboxUnavailable(
                f"Images are not supported on {MACHINE}.", hint="Use x86_64 or aarch64."
            ) from None
        path.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}")
        draft.write_bytes(content)
        draft.chmod(0o755)
        draft.rename(path)
    return path


def sources(spec: SandboxSpec, tree: TreeMount, data: Path, etc: Path) -> dict[str, Path]:
    """What bubblewrap is to show, by name; the binds are not among it."""
    system = spec.system
    assert system is not None
    folders = SandboxFolders(spec.folder)
    own = {"hub": folders.hub, "tmp": folders.tmp, "tree": tree.path}
    if spec.service is not None:
        own = {"tree": tree.path} if _places(spec) else {}
    return {"system": system.root, "etc": etc, "hold": holder(data), **own}
