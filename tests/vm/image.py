"""Builds the disk of a virtual machine: Debian or Ubuntu with systemd, control groups of version 2
alone, and what Carrel and its tests need. `python -m tests.vm.image SYSTEM` prints the folder that
has it.

Needs root. Debian comes from the mirror that apt uses on this machine, Ubuntu from the folder
beside it or from CARREL_UBUNTU. The result is kept in the user's cache folder, under a name made of
all that goes into it; the project itself is not in it, but on a disk of its own that is made anew
for each boot (`machine.py`).
"""

from __future__ import annotations

import fcntl
import hashlib
import lzma
import os
import pwd
import shlex
import shutil
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
PLACE = "/opt/project"
"""Where the machine has the project."""
ENVIRONMENT = "/opt/carrel"


@dataclass(frozen=True)
class System:
    """A release, by its code name."""

    release: str
    python: str
    """The version of the interpreter that Carrel has there."""
    kernel: str = "linux-image-cloud-amd64"
    """The package that needs the newest kernel."""
    programs: tuple[str, ...] = ("python3", "python3-venv")
    suites: tuple[str, ...] = ()
    """Others of the archive, for what is `added`."""
    added: tuple[str, ...] = ()
    ubuntu: bool = False


DEBIAN = System("bookworm", "3.11")
"""Most tests are in this one."""
OTHERS = (
    System("trixie", "3.13"),
    System(
        "jammy",
        "3.11",
        "linux-image-virtual",
        ("python3", "apparmor"),
        ("jammy-updates",),
        ("python3.11", "python3.11-venv"),
        ubuntu=True,
    ),
    System(
        "noble", "3.12", "linux-image-virtual", ("python3", "python3-venv", "apparmor"), ubuntu=True
    ),
)
SYSTEMS = {system.release: system for system in (DEBIAN, *OTHERS)}
UBUNTU = "CARREL_UBUNTU"
"""The variable with the address of a mirror of Ubuntu's archive."""
_KEYRING = "pool/main/u/ubuntu-keyring/ubuntu-keyring_2023.11.28.1_all.deb"
_KEYRING_SHA256 = "36de43b15853ccae0028e9a767613770c704833f82586f28eb262f0311adb8a8"
"""Debian 12 has no package of Ubuntu's keys. This has F6EC B376 2474 EDA9 D21B 7022 8719 20D1
991B C93C, by which all releases are signed."""
PROGRAMS = (
    *("systemd-sysv", "udev", "dbus", "dbus-user-session", "libpam-systemd", "polkitd"),
    *("git", "bubblewrap", "tmux", "sudo", "iproute2", "passwd"),
    *("uidmap", "fuse-overlayfs", "xfsprogs", "e2fsprogs", "kmod", "procps", "quota"),
    *("openssh-server", "ca-certificates", "attr", "strace", "make"),
)
MODULES = (
    *("virtio_ring", "virtio", "virtio_pci_legacy_dev", "virtio_pci_modern_dev", "virtio_pci"),
    "virtio_blk",
)
"""In the order in which they are loaded to find the disk."""
UNNEEDED = (
    *("apt-daily.timer", "apt-daily-upgrade.timer", "fstrim.timer", "e2scrub_reap.service"),
    *("systemd-binfmt.service", "proc-sys-fs-binfmt_misc.automount"),
)
"""Units that only take time."""
PEOPLE = ("dev", "ling")
"""Ordinary users; `ling` lingers: its services go on when it is logged out."""
_TESTING = ("httpx", "hypothesis", "pytest", "pytest-asyncio", "pytest-timeout", "pytest-xdist")
_INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
for name in {modules}; do insmod /modules/$name.ko 2>/dev/null; done
while [ ! -b /dev/vda ]; do sleep 0.1; done
mount /dev/vda /root
umount /proc /sys; mount --move /dev /root/dev
exec switch_root /root /sbin/init
"""


class NoMirror(Exception):
    """This machine reaches no archive of the system."""


def build(system: System = DEBIAN) -> Path:
    """The folder with `vmlinuz`, `initrd`, `root.img` and `key`; made if it is not there, in a
    process whose mounts go with it."""
    folder = _folder(system)
    if folder.exists():
        return folder
    _archive(system)
    words = ["unshare", "--mount", sys.executable, "-m", "tests.vm.image", system.release]
    subprocess.run(words, cwd=PROJECT, stdout=sys.stderr, check=True)
    return folder


def _folder(system: System) -> Path:
    # Not by HOME, which is another one in every run of tests.
    cache = Path(pwd.getpwuid(os.geteuid()).pw_dir) / ".cache/carrel-vm"
    made_of = [Path(__file__).read_bytes()]
    made_of += [(PROJECT / name).read_bytes() for name in ("pyproject.toml", "constraints.txt")]
    digest = hashlib.sha256(b"\0".join(made_of)).hexdigest()
    return cache / f"{system.release}-{digest[:16]}"


def _build(system: System) -> Path:
    folder = _folder(system)
    cache = folder.parent
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            # Those of another state of the project, and what was not built to its end. Machines
            # that run have them open.
            for other in (path for path in cache.iterdir() if path.is_dir()):
                if other.name.partition("-")[0] in (system.release, "work"):
                    shutil.rmtree(other)
            _build_in(cache / "work", system).rename(folder)
    return folder


def _build_in(work: Path, system: System) -> Path:
    work.mkdir()
    archive = _archive(system)
    keyring = _keyring(work, archive) if system.ubuntu else _DEBIAN_KEYRING
    _say(f"the kernel of {system.release}")
    version = _kernel(work, system, f"deb [signed-by={keyring}] {archive} {system.release} main")
    _say("the system")
    root = _system(work, system, archive, keyring)
    _say("Carrel's packages")
    _environment(work, root, system)
    _configure(root, work, version)
    _say("the disk")
    _initrd(work, version)
    disk(root, work / "root.img", "6G")
    for path in work.iterdir():
        if path.name not in ("vmlinuz", "initrd", "root.img", "key"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return work


def _archive(system: System) -> str:
    """The address of the system's archive."""
    debian = _read("sh", "-c", ". /etc/os-release; echo $VERSION_CODENAME").strip()
    targets = _read("apt-get", "indextargets", "--format", "$(CODENAME) $(REPO_URI)")
    lines = [line.split() for line in targets.splitlines()]
    address = next((address for codename, address in lines if codename == debian), "").rstrip("/")
    if system.ubuntu:
        beside = f"{address.rpartition('/')[0]}/ubuntu"
        address = os.environ.get(UBUNTU, beside).rstrip("/")
    try:
        urllib.request.urlopen(f"{address}/dists/{system.release}/InRelease", timeout=60).close()
    except (ValueError, urllib.error.URLError) as error:
        said = f"Set {UBUNTU} to its address." if system.ubuntu else "Run apt-get update."
        raise NoMirror(f"No mirror has {system.release} ({error}). {said}") from error
    return address


_DEBIAN_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


def _keyring(work: Path, archive: str) -> Path:
    package = work / "keyring.deb"
    with urllib.request.urlopen(f"{archive}/{_KEYRING}", timeout=60) as got:
        package.write_bytes(got.read())
    if hashlib.sha256(package.read_bytes()).hexdigest() != _KEYRING_SHA256:
        raise RuntimeError(f"{archive}/{_KEYRING} is another file than it was")
    _run("dpkg", "-x", package, work / "keyring")
    return work / "keyring/usr/share/keyrings/ubuntu-archive-keyring.gpg"


def _kernel(work: Path, system: System, source: str) -> str:
    """By apt, with lists of its own: this machine may have another release."""
    place = work / "kernel"
    (place / "lists/partial").mkdir(parents=True)
    (place / "sources.list").write_text(f"{source}\n")
    given = {
        "Dir::Etc::SourceList": place / "sources.list",
        "Dir::Etc::SourceParts": "-",
        "Dir::State::Lists": place / "lists",
        "Dir::Cache::pkgcache": "",
        "Dir::Cache::srcpkgcache": "",
    }
    options = [word for name, value in given.items() for word in ("-o", f"{name}={value}")]
    _run("apt-get", *options, "update", "-q")

    def needs(package: str, kind: str) -> list[str]:
        lines = _read("apt-cache", *options, "depends", package).splitlines()
        return [line.split()[-1] for line in lines if f"Depends: {kind}" in line]

    package = needs(system.kernel, "linux-image")[0]
    wanted = [package, *needs(package, "linux-modules")]
    _run("apt-get", *options, "download", "-q", *wanted, cwd=place)
    for path in place.glob("*.deb"):
        _run("dpkg", "-x", path, place)
    shutil.copy(next(place.glob("boot/vmlinuz-*")), work / "vmlinuz")
    return next(place.glob("**/lib/modules/*")).name


def _system(work: Path, system: System, archive: str, keyring: Path) -> Path:
    root = work / "rootfs"
    kinds = [f"--include={','.join((*PROGRAMS, *system.programs))}", f"--keyring={keyring}"]
    script: list[str | Path] = []
    if system.ubuntu:
        kinds.append("--components=main,universe")
        # It may be older than the release; all of Ubuntu's are one.
        script.append("/usr/share/debootstrap/scripts/gutsy")
    _run("debootstrap", "--variant=minbase", *kinds, system.release, root, archive, *script)
    for name in ("proc", "sys"):
        if os.path.ismount(root / name):
            _run("umount", "-R", root / name)
    for suite in system.suites:
        source = f"deb {archive} {suite} main universe\n"
        (root / f"etc/apt/sources.list.d/{suite}.list").write_text(source)
    if system.suites:
        added = " ".join(system.added)
        _inside(root, "apt-get update -q")
        _inside(root, f"apt-get install -q -y --no-install-recommends {added}")
    return root


def _environment(work: Path, root: Path, system: System) -> None:
    """An environment with all that Carrel needs, and Carrel from where its disk will be."""
    wheels = work / "wheels"
    with open(PROJECT / "pyproject.toml", "rb") as file:
        needed = tomllib.load(file)["project"]["dependencies"]
    version = ("--only-binary=:all:", "--python-version", system.python)
    pip: tuple[str | Path, ...] = (PROJECT / ".venv/bin/pip", "download", "-q", *version)
    bound = ("-c", PROJECT / "constraints.txt", "-d", wheels)
    _run(*pip, *bound, *needed, *_TESTING, "hatchling", "editables")
    for source, place in ((wheels, root / "opt/wheels"), (PROJECT, root / PLACE[1:])):
        place.mkdir(parents=True)
        _run("mount", "--bind", "-o", "ro", source, place)
    try:
        offline = f"--no-index --find-links /opt/wheels -c {PLACE}/constraints.txt"
        _inside(root, f"python{system.python} -m venv {ENVIRONMENT}")
        pip_there = f"{ENVIRONMENT}/bin/pip --disable-pip-version-check install -q {offline}"
        _inside(root, f"{pip_there} hatchling editables {' '.join(_TESTING)}")
        _inside(root, f"{pip_there} --no-build-isolation --editable {PLACE}")
    finally:
        for place in (root / "opt/wheels", root / PLACE[1:]):
            _run("umount", place)
    (root / "opt/wheels").rmdir()


def _configure(root: Path, work: Path, version: str) -> None:
    modules = _modules(work, version)
    shutil.copytree(modules, root / f"usr/lib/modules/{version}", symlinks=True)
    _inside(root, f"depmod {version}")
    _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "tests", "-f", work / "key")
    key = (work / "key.pub").read_text()
    for name in PEOPLE:
        _inside(root, f"useradd -m -s /bin/bash {name}")
    for home in (root / "root", *(root / "home" / name for name in PEOPLE)):
        (home / ".ssh").mkdir(mode=0o700, exist_ok=True)
        (home / ".ssh/authorized_keys").write_text(key)
    for name in PEOPLE:
        _inside(root, f"chown -R {name}: /home/{name}/.ssh")
    files = {
        "etc/hostname": "desk\n",
        "etc/hosts": "127.0.0.1 localhost desk\n",
        "etc/fstab": "/dev/vda / ext4 defaults 0 1\n"
        "/dev/vdb /data xfs prjquota,nofail 0 0\n"
        f"/dev/vdc {PLACE} ext4 ro,nofail 0 0\n",
        "etc/modules-load.d/machine.conf": "virtio_net\nxfs\noverlay\nloop\n",
        "etc/systemd/network/any.network": "[Match]\nName=e*\n[Network]\nAddress=10.0.2.15/24\n",
        "etc/ssh/sshd_config.d/quick.conf": "UseDNS no\nPermitRootLogin prohibit-password\n"
        "MaxStartups 100\nMaxSessions 50\n",
        # Ten seconds else, after each last logout. Less would start a manager for each command.
        "etc/systemd/logind.conf.d/quick.conf": "[Login]\nUserStopDelaySec=4\n",
        "etc/profile.d/carrel.sh": f'PATH="{ENVIRONMENT}/bin:$PATH"\n',
        "etc/environment": f"PATH={ENVIRONMENT}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin"
        ":/usr/bin:/sbin:/bin\n",
        "var/lib/systemd/linger/ling": "",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "data").mkdir()
    _inside(root, "systemctl -q enable systemd-networkd ssh")
    _inside(root, f"systemctl -q mask {' '.join(UNNEEDED)}")


def _modules(work: Path, version: str) -> Path:
    return next((work / "kernel").glob(f"**/lib/modules/{version}"))


def _initrd(work: Path, version: str) -> None:
    place = work / "initrd.d"
    for name in ("bin", "modules", "proc", "sys", "dev", "root"):
        (place / name).mkdir(parents=True)
    shutil.copy("/bin/busybox", place / "bin/busybox")
    for path in _modules(work, version).rglob("virtio*.ko*"):
        name = path.name.removesuffix(".xz")
        read = lzma.open if path.suffix == ".xz" else open
        with read(path, "rb") as packed:
            (place / "modules" / name).write_bytes(packed.read())
    (place / "init").write_text(_INIT.format(modules=" ".join(MODULES)))
    (place / "init").chmod(0o755)
    pack = f"find . | cpio -o -H newc --quiet | gzip > {shlex.quote(str(work / 'initrd'))}"
    _run("sh", "-c", pack, cwd=place)


def disk(folder: Path, image: Path, size: str) -> None:
    _run("truncate", "-s", size, image)
    _run("mkfs.ext4", "-q", "-F", "-d", folder, image)


def _inside(root: Path, command: str) -> None:
    _run(
        "chroot",
        root,
        "/usr/bin/env",
        "-i",
        "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
        "DEBIAN_FRONTEND=noninteractive",
        "sh",
        "-c",
        command,
    )


def _run(*words: str | Path, cwd: Path | None = None) -> None:
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        said = (done.stdout + done.stderr)[-2000:]
        raise RuntimeError(f"{' '.join(map(str, words))} ended with {done.returncode}:\n{said}")


def _read(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def _say(what: str) -> None:
    print(f"test-vm: building {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    print(_build(SYSTEMS[sys.argv[1]]))
