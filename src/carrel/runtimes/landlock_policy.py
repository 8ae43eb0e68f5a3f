"""What a sandbox without namespaces may touch, as Landlock rules."""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from carrel.domain.runtimes import Bind, Network
from carrel.linux import landlock
from carrel.linux.landlock import Rules

TOOLCHAIN = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store")

# fmt: off
ETC = (
    # who and where
    "passwd", "group", "nsswitch.conf", "hosts", "host.conf", "hostname", "resolv.conf",
    "services", "protocols", "networks", "gai.conf", "shells", "localtime", "timezone",
    "locale.conf", "locale.alias", "default/locale", "os-release", "lsb-release",
    "debian_version", "alpine-release", "redhat-release", "fedora-release",
    # the loader and the choice of programs
    "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "ld-musl-x86_64.path",
    "ld-musl-aarch64.path", "ld.so.preload", "alternatives",
    # certificates, never the private keys beside them
    "ssl/certs", "ssl/openssl.cnf", "ssl/cert.pem", "ca-certificates",
    "ca-certificates.conf", "pki/tls/certs", "pki/tls/cert.pem", "pki/tls/openssl.cnf",
    "pki/ca-trust", "pki/java", "crypto-policies", "gnutls",
    # shells, terminals, editors
    "profile", "profile.d", "bash.bashrc", "bashrc", "bash_completion.d", "zsh", "inputrc",
    "terminfo", "termcap", "vim", "nanorc", "tmux.conf", "screenrc", "skel", "lesskey",
    # languages and libraries
    "python3", "perl", "fonts", "magic", "magic.mime", "mime.types", "xattr.conf",
    "ImageMagick-6", "ImageMagick-7", "R", "maven", "gtk-3.0", "xdg",
    # tools that give up when a file is there and cannot be read
    "gitconfig", "gitattributes", "wgetrc", "ssh/ssh_config", "ssh/ssh_config.d",
)
_ETC_PATTERNS = ("python3.*", "java*", "llvm*", "emacs*", "php*")
# fmt: on

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_READ = ("/proc", "/sys/devices/system")
"""In /proc Landlock itself refuses the memory, environment, descriptors and root of
processes outside; numbers and command lines can be seen."""


@dataclass(frozen=True)
class LandlockSpec:
    """`own_user` says that no other process of the machine runs as the sandbox's user."""

    tree: Path
    home: Path
    tmp: Path
    network: Network = Network.NONE
    binds: tuple[Bind, ...] = ()
    own_user: bool = False
    hub: Path | None = None
    """The folder with the socket that leads to Carrel."""


def etc_paths() -> list[str]:
    """The parts of /etc that programs need and that hold no secrets."""
    named = [f"/etc/{name}" for name in ETC]
    matched = [str(path) for pattern in _ETC_PATTERNS for path in Path("/etc").glob(pattern)]
    return named + sorted(matched)


def rules(spec: LandlockSpec) -> Rules:
    """The rule set of one sandbox, ready to be sent to the launcher.

    A sandbox whose user is shared with other processes gets no folder of
    pseudo-terminals and no shared memory: those of the other processes are in them too.
    """
    read_only = [str(bind.source) for bind in spec.binds if not bind.writable]
    writable = [str(bind.source) for bind in spec.binds if bind.writable]
    ports: list[int] | None = None if spec.network is Network.OPEN else []
    device = [f"/dev/{name}" for name in _DEVICES]
    write = [str(spec.tree), str(spec.home), str(spec.tmp), *writable]
    if spec.own_user:
        device += ["/dev/ptmx", "/dev/pts"]
        write.append("/dev/shm")
    return {
        "execute": [*TOOLCHAIN, *read_only],
        "read": [*_READ, *etc_paths()],
        "write": write,
        "device": device,
        "connect": [] if spec.hub is None else [str(spec.hub)],
        "tcp_bind": ports,
        "tcp_connect": ports,
    }


def unix_sockets_allowed(spec: LandlockSpec, abi: int) -> bool:
    """Whether the sandbox may make Unix sockets: not when it could reach its user's own
    ones with them. For `seccomp_policy.without_namespaces`."""
    return spec.own_user or abi >= landlock.ABI_UNIX


def uncovered(spec: LandlockSpec, abi: int) -> tuple[str, ...]:
    """What the rules and the filter together leave open or take away, in sentences."""
    gaps = list(landlock.covers(abi).uncovered)
    closed: set[str] = set()
    taken = ["System V IPC and message queues are refused: the whole machine shares them."]
    if spec.network is Network.NONE:
        closed |= {landlock.TCP_OPEN, landlock.DATAGRAMS_OPEN}
        taken.append("No internet socket can be made, not even for loopback.")
    if not unix_sockets_allowed(spec, abi):
        closed |= {landlock.ABSTRACT_SOCKETS_OPEN, landlock.PATH_SOCKETS_OPEN}
        taken.append(
            "Unix sockets other than pairs are refused: the hub cannot be reached from inside."
        )
    if not spec.own_user:
        taken.append(
            "New pseudo-terminals and POSIX shared memory are refused: the sandbox runs as "
            "an account that others use."
        )
    return (*(gap for gap in gaps if gap not in closed), *taken)


def remove_shared_memory(uid: int, folder: Path = Path("/dev/shm")) -> int:
    """Removes what a sandbox's own user left in shared memory; answers how many.

    Only for a uid that no other process of the machine has.
    """
    removed = 0
    if not folder.is_dir():
        return 0
    with os.scandir(folder) as entries:
        found = list(entries)
    for entry in found:
        with contextlib.suppress(FileNotFoundError):
            if entry.stat(follow_symlinks=False).st_uid != uid:
                continue
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)
            removed += 1
    return removed
