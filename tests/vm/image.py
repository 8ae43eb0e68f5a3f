"""Builds the disk of a virtual machine: Debian with systemd, control groups of version 2 alone,
and what Carrel and its tests need. `python -m tests.vm.image` prints the folder that has it.

Needs root. The mirror is the one that apt uses on this machine. The result is kept in the user's
cache folder, under a name made of all that goes into it; the project itself is not in it, but on a
disk of its own that is made anew for each boot (`project_disk`).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import pwd
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
PLACE = "/opt/project"
"""Where the machine has the project."""
ENVIRONMENT = "/opt/carrel"
KERNEL = "linux-image-cloud-amd64"
PROGRAMS = (
    *("systemd-sysv", "udev", "dbus", "dbus-user-session", "libpam-systemd", "polkitd"),
    *("python3", "python3-venv", "git", "bubblewrap", "tmux", "sudo", "iproute2", "passwd"),
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


def build() -> Path:
    """The folder with `vmlinuz`, `initrd`, `root.img` and `key`; made if it is not there, in a
    process whose mounts go with it."""
    words = ["unshare", "--mount", sys.executable, "-m", "tests.vm.image"]
    done = subprocess.run(words, cwd=PROJECT, stdout=subprocess.PIPE, text=True, check=True)
    return Path(done.stdout.strip())


def _build() -> Path:
    # Not by HOME, which is another one in every run of tests.
    cache = Path(pwd.getpwuid(os.geteuid()).pw_dir) / ".cache/carrel-vm"
    folder = cache / _name()
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            # Others are of another state of the project. Machines that run have them open.
            for other in (path for path in cache.iterdir() if path.is_dir()):
                shutil.rmtree(other)
            _build_in(cache / "work").rename(folder)
    return folder


def _build_in(work: Path) -> Path:
    work.mkdir()
    _say("the kernel")
    version = _kernel(work)
    _say("the system")
    root = _system(work)
    _say("Carrel's packages")
    _environment(work, root)
    _configure(root, work, version)
    _say("the disk")
    _initrd(work, version)
    _disk(root, work / "root.img", "6G")
    for name in ("kernel", "rootfs", "wheels", "initrd.d"):
        shutil.rmtree(work / name)
    return work


def project_disk(place: Path) -> None:
    """The project as it is now, compiled, as a disk."""
    copy = place.with_suffix(".d")
    for name in ("src", "tests", "examples", "scripts"):
        shutil.copytree(PROJECT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "constraints.txt", "README.md", "LICENSE", "Makefile"):
        shutil.copy2(PROJECT / name, copy / name)
    _run("python3", "-m", "compileall", "-q", copy / "src", copy / "tests")
    _disk(copy, place, "512M")
    shutil.rmtree(copy)


def _name() -> str:
    made_of = [Path(__file__).read_bytes()]
    made_of += [(PROJECT / name).read_bytes() for name in ("pyproject.toml", "constraints.txt")]
    return hashlib.sha256(b"\0".join(made_of)).hexdigest()[:16]


def _kernel(work: Path) -> str:
    lines = _read("apt-cache", "depends", KERNEL).splitlines()
    package = next(line.split()[-1] for line in lines if "Depends: linux-image" in line)
    place = work / "kernel"
    place.mkdir()
    _run("apt-get", "download", "-q", package, cwd=place)
    _run("dpkg", "-x", next(place.glob("*.deb")), place)
    shutil.copy(next(place.glob("boot/vmlinuz-*")), work / "vmlinuz")
    return next(place.glob("lib/modules/*")).name


def _mirror() -> tuple[str, str]:
    """The address of Debian's archive and the release's name, as apt has them."""
    release = _read("sh", "-c", ". /etc/os-release; echo $VERSION_CODENAME").strip()
    targets = _read("apt-get", "indextargets", "--format", "$(CODENAME) $(REPO_URI)")
    for line in targets.splitlines():
        codename, address = line.split()
        if codename == release:
            return release, address
    raise RuntimeError("apt knows no mirror of this machine's release: run apt-get update")


def _system(work: Path) -> Path:
    root = work / "rootfs"
    release, address = _mirror()
    kinds = f"--include={','.join(PROGRAMS)}"
    _run("debootstrap", "--variant=minbase", kinds, release, root, address)
    for name in ("proc", "sys"):
        if os.path.ismount(root / name):
            _run("umount", "-R", root / name)
    return root


def _environment(work: Path, root: Path) -> None:
    """An environment with all that Carrel needs, and Carrel from where its disk will be."""
    wheels = work / "wheels"
    pip: tuple[str | Path, ...] = (PROJECT / ".venv/bin/pip", "wheel", "-q")
    bound = ("-c", PROJECT / "constraints.txt", "-w", wheels)
    _run(*pip, *bound, PROJECT, *_TESTING, "hatchling", "editables")
    for path in wheels.glob("carrel-*"):
        path.unlink()
    for source, place in ((wheels, root / "opt/wheels"), (PROJECT, root / PLACE[1:])):
        place.mkdir(parents=True)
        _run("mount", "--bind", "-o", "ro", source, place)
    try:
        offline = f"--no-index --find-links /opt/wheels -c {PLACE}/constraints.txt"
        _inside(root, f"python3 -m venv {ENVIRONMENT}")
        pip_there = f"{ENVIRONMENT}/bin/pip --disable-pip-version-check install -q {offline}"
        _inside(root, f"{pip_there} hatchling editables {' '.join(_TESTING)}")
        _inside(root, f"{pip_there} --no-build-isolation --editable {PLACE}")
    finally:
        for place in (root / "opt/wheels", root / PLACE[1:]):
            _run("umount", place)
    (root / "opt/wheels").rmdir()


def _configure(root: Path, work: Path, version: str) -> None:
    shutil.copytree(work / f"kernel/lib/modules/{version}", root / f"lib/modules/{version}")
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


def _initrd(work: Path, version: str) -> None:
    place = work / "initrd.d"
    for name in ("bin", "modules", "proc", "sys", "dev", "root"):
        (place / name).mkdir(parents=True)
    shutil.copy("/bin/busybox", place / "bin/busybox")
    for path in (work / f"kernel/lib/modules/{version}").rglob("virtio*.ko"):
        shutil.copy(path, place / "modules" / path.name)
    (place / "init").write_text(_INIT.format(modules=" ".join(MODULES)))
    (place / "init").chmod(0o755)
    pack = f"find . | cpio -o -H newc --quiet | gzip > {shlex.quote(str(work / 'initrd'))}"
    _run("sh", "-c", pack, cwd=place)


def _disk(folder: Path, image: Path, size: str) -> None:
    _run("truncate", "-s", size, image)
    _run("mkfs.ext4", "-q", "-F", "-d", folder, image)


def _inside(root: Path, command: str) -> None:
    _run(
        "chroot",
        root,
        "/usr/bin/env",
        "-i",
        "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
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


def _say(what: Iterable[str] | str) -> None:
    print(f"test-vm: building {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    print(_build())
