"""A virtual machine with systemd, under software emulation, that tests log in to by SSH.

Every call of `run` is a login of its own, with PAM and logind, and a logout at its end. The machine
reaches nothing: its only way is the port of its SSH server, on this machine's loopback. What it
writes to its disks is gone when it is switched off, and stays over a reboot.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.vm import image

AT_ONCE = 2
"""So many users: what one waits for leaves time to the other."""
CLOCK = "shift=2,sleep=on"
"""An instruction takes 4 ns of the machine's own time, which stands still while others have the
processor: what waits in it for so many seconds waits for as much work on a busy machine as on a
quiet one. It can have one processor only."""
PATIENCE = 8
"""How many times longer than on a quiet machine anything here may take: the emulation gets the
processors that others leave. Every bound of a wait is a multiple of it."""
BOOT_S = 60.0 * PATIENCE
"""Some twenty seconds on a quiet machine."""
CALL_S = 120.0 * PATIENCE
"""A first command starts a daemon, which proves its walls: twenty seconds on a quiet machine."""
SCRIPT_S = 300.0 * PATIENCE
"""Some starts of a daemon, while others do the same; a suite of tests; the demo."""
TEST_S = 900.0 * PATIENCE
LOGIN_S = 20.0 * PATIENCE
"""Until the server of SSH says something."""
PROCESSOR = "max,la57=off,cx16=off"
"""Without `cmpxchg16b`: QEMU 7.2 leaves wrong flags after it, of which Linux 6.12 dies."""
EAT = "python3 -c 'x = bytearray(400 << 20); raise SystemExit(3)' || test $? = 137"
"""The end of a step: a command that must not survive a limit of 200 MB."""
QUICK = "mitigations=off tsc=reliable init_on_alloc=0 randomize_kstack_offset=off"
"""What a kernel does for the processor that it is told of, or for safety, takes a third of the time
under emulation; above all a clock that is read by leaving the machine."""


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    def ok(self) -> str:
        assert self.code == 0, self
        return self.out.strip()


class Machine:
    def __init__(self, folder: Path, system: image.System) -> None:
        self._folder, self._port, self._built = folder, 0, image.build(system)
        self._system, self._compiled = system, False
        self._qemu: subprocess.Popen[bytes] | None = None
        self.told: list[str] = []

    def start(self) -> None:
        # Not read from the cache at each login: another run may put another image there.
        shutil.copy(self._built / "key", self._folder / "key")
        self._project_disk(self._folder / "project.img")
        subprocess.run(["truncate", "-s", "3G", self._folder / "data.img"], check=True)
        subprocess.run(["mkfs.xfs", "-q", self._folder / "data.img"], check=True)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        with open(self._folder / "qemu.log", "wb") as log:
            self._qemu = subprocess.Popen(
                self._words(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._await_login("")
        if not self._compiled:
            mount = f"mount -o remount,{{}} {image.PLACE}"
            compiles = f"{image.ENVIRONMENT}/bin/python -m compileall -q -j 2 {image.PLACE}/src"
            self.script("root", mount.format("rw"), compiles, mount.format("ro"))

    def _project_disk(self, place: Path) -> None:
        """The project as it is now; compiled, if this machine has the Python of that one. Else it
        is done there: each process would compile what it loads."""
        copy, project = place.with_suffix(".d"), image.PROJECT
        passed = shutil.ignore_patterns("__pycache__")
        for name in ("src", "tests", "examples", "scripts"):
            shutil.copytree(project / name, copy / name, ignore=passed)
        for name in ("pyproject.toml", "constraints.txt", "README.md", "LICENSE", "Makefile"):
            shutil.copy2(project / name, copy / name)
        own = Path(os.environ.get("PYENV_ROOT", "/root/.pyenv"))
        found = [*own.glob(f"versions/{self._system.python}.*/bin/python")]
        for python in (Path(f"/usr/bin/python{self._system.python}"), *found):
            if shutil.which(python) and not self._compiled:
                words: list[str | Path] = [
                    python,
                    "-m",
                    "compileall",
                    "-q",
                    copy / "src",
                    copy / "tests",
                ]
                self._compiled = subprocess.run(words, check=False).returncode == 0
        image.disk(copy, place, "512M")
        shutil.rmtree(copy)

    def run(self, user: str, command: str, timeout: float = CALL_S) -> Answer:
        """A login of `user`, by a shell that does `command`."""
        done = subprocess.run(
            [*self._ssh(user), f"bash -lc {shlex.quote(command)}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    def script(self, user: str, *steps: str) -> str:
        """One login, in which every step must succeed; each login takes seconds. What it says."""
        return self.run(user, "\n".join(("set -ex", *steps)), SCRIPT_S).ok()

    def wait(self, user: str, condition: str) -> None:
        """Until the command `condition` succeeds."""
        loop = shlex.quote(f"until {condition}; do sleep 1; done")
        assert self.run(user, f"timeout {CALL_S} bash -c {loop}", SCRIPT_S).code == 0, condition

    def tell(self, line: str) -> None:
        """Shown at the end of all tests."""
        self.told.append(line)

    def boot_id(self) -> str:
        return self.run("root", "cat /proc/sys/kernel/random/boot_id").ok()

    def reboot(self) -> None:
        before = self.boot_id()
        self.run("root", "systemctl reboot")
        self._await_login(before)

    def stop(self) -> None:
        if self._qemu is not None and self._qemu.poll() is None:
            os.kill(self._qemu.pid, signal.SIGKILL)
            self._qemu.wait()

    def _said(self) -> str:
        logs = [self._folder / "qemu.log", self._folder / "console.log"]
        return "\n".join(log.read_text(errors="replace")[-4000:] for log in logs if log.exists())

    def _await_login(self, before: str) -> None:
        """Until somebody can log in to a machine that was booted after `before`."""
        deadline = time.monotonic() + BOOT_S
        answer, longest = Answer(-1, "", ""), 20.0
        while time.monotonic() < deadline:
            assert self._qemu is not None and self._qemu.poll() is None, self._said()
            with contextlib.suppress(subprocess.TimeoutExpired):
                answer = self.run("root", "cat /proc/sys/kernel/random/boot_id", timeout=longest)
                if answer.code == 0 and answer.out.strip() != before:
                    return
            # An attempt of before the boot may never end; one on a busy machine may take long.
            longest = min(2 * longest, LOGIN_S)
            # The emulated network accepts connections before the machine does.
            time.sleep(0.5)
        raise AssertionError(f"no login within {BOOT_S} s: {answer}\n{self._said()}")

    def _words(self) -> list[str]:
        # AppArmor is tested elsewhere, as it comes.
        security = " lsm=landlock,yama" if self._system == image.DEBIAN else ""
        drive = "if=virtio,format=raw,cache=unsafe,snapshot=on"
        disks = (self._built / "root.img", self._folder / "data.img", self._folder / "project.img")
        network = f"user,id=n0,restrict=on,hostfwd=tcp:127.0.0.1:{self._port}-:22"
        return [
            *("qemu-system-x86_64", "-machine", "q35", "-accel", "tcg,thread=single"),
            *("-icount", CLOCK, "-cpu", PROCESSOR, "-smp", "1", "-m", "3G"),
            *("-display", "none", "-monitor", "none"),
            *("-kernel", str(self._built / "vmlinuz"), "-initrd", str(self._built / "initrd")),
            *("-append", f"console=ttyS0 root=/dev/vda rw quiet {QUICK}{security}"),
            *(word for disk in disks for word in ("-drive", f"file={disk},{drive}")),
            *("-device", "virtio-rng-pci", "-serial", f"file:{self._folder}/console.log"),
            *("-netdev", network, "-device", "virtio-net-pci,netdev=n0"),
        ]

    def _ssh(self, user: str) -> list[str]:
        options = {
            "StrictHostKeyChecking": "no",
            "UserKnownHostsFile": "/dev/null",
            "LogLevel": "ERROR",
            "BatchMode": "yes",
            "ConnectTimeout": f"{LOGIN_S:.0f}",
            # A machine that was booted again refuses what belongs to a connection of before.
            "ServerAliveInterval": "30",
            "ServerAliveCountMax": f"{SCRIPT_S / 30:.0f}",
        }
        given = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        key = ["-i", str(self._folder / "key"), "-p", str(self._port)]
        return ["ssh", "-T", *given, *key, f"{user}@127.0.0.1"]


def together(check: Callable[[str], None], users: Iterable[str]) -> None:
    """For some users at a time."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(check, users))


@contextlib.contextmanager
def machine(folder: Path, system: image.System = image.DEBIAN) -> Iterator[Machine]:
    """One that has booted. It is switched off at the end."""
    made = Machine(folder, system)
    try:
        made.start()
        yield made
    finally:
        made.stop()
