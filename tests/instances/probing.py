"""What a server in a sandbox tries, that it should not be able to: a script for the project.

It serves as `tests.instances.small` does. When somebody writes the file `go.json` beside it, it
tries what is in there, and says in `found.json` what came of it.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from carrel.domain.instances import PortBy, Server
from tests.instances.small import put_small

FILE = "probe.py"
SCRIPT = r'''
import ctypes, json, os, pathlib, socket, subprocess, sys, threading, time

here = pathlib.Path(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
PIDFD_GETFD, PTRACE_ATTACH, PTRACE_DETACH = 438, 16, 17


def other_processes():
    mine = {os.getpid()}
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) not in mine]


def worth_having(number):
    """A socket that leads out of here."""
    try:
        found = socket.socket(fileno=number)
    except OSError:
        os.close(number)
        return ""
    family, listens = found.family, found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    inside = pathlib.Path("/proc/self/net/tcp").read_text()
    port = found.getsockname()[1] if family == socket.AF_INET else 0
    found.close()
    if family == socket.AF_NETLINK:
        return "netlink"
    return "listener" if listens and f":{port:04X} " not in inside else ""


def taken(pid):
    """Of the descriptors of another process."""
    got = []
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return got
    for number in range(16):
        mine = libc.syscall(PIDFD_GETFD, pidfd, number, 0)
        if mine >= 0:
            got.append(worth_having(mine))
        try:
            found = os.open(f"/proc/{pid}/fd/{number}", os.O_RDONLY)
            got.append(worth_having(found))
        except OSError:
            pass
    os.close(pidfd)
    return [one for one in got if one]


def looked_at(pid):
    seen = {"pid": pid, "taken": taken(pid), "read": []}
    try:
        seen["name"] = pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        seen["name"] = ""
    for name in ("environ", "mem", "maps", "fd"):
        try:
            path = f"/proc/{pid}/{name}"
            os.listdir(path) if name == "fd" else open(path, "rb").read(1 if name == "mem" else -1)
            seen["read"].append(name)
        except OSError as error:
            if name == "mem" and error.errno == 5:
                seen["read"].append(name)
    if libc.ptrace(PTRACE_ATTACH, pid, 0, 0) == 0:
        seen["read"].append("ptrace")
        os.waitpid(pid, 0x40000000)
        libc.ptrace(PTRACE_DETACH, pid, 0, 0)
    return seen


def said_anywhere(texts):
    """Which of these this process can read of: in files below /, and of processes."""
    found = set()
    places = [f"/proc/{pid}/{name}" for pid in other_processes() for name in ("environ", "cmdline")]
    for folder in ("/home", "/tmp", "/run", "/var", "/etc", str(here)):
        for above, _, names in os.walk(folder):
            places += [os.path.join(above, name) for name in names if name != "go.json"]
    for place in places:
        try:
            if os.path.exists(place) and not os.path.islink(place):
                content = open(os.open(place, os.O_RDONLY | os.O_NONBLOCK), "rb").read(1 << 20)
                found |= {text for text in texts if text.encode() in (content or b"")}
        except OSError:
            pass
    return sorted(found)


def ways_out(number, port):
    """By a listening socket of another network."""
    listener = socket.socket(fileno=number)
    listener.settimeout(20)
    accepted, _ = listener.accept()
    libc.connect(accepted.fileno(), bytes(16), 16)
    listener.shutdown(socket.SHUT_RDWR)
    out = []
    for end in (accepted, listener, socket.socket()):
        end.settimeout(2)
        try:
            end.connect(("127.0.0.1", port))
            out.append("connected")
        except OSError as error:
            out.append(type(error).__name__)
    return out


def probe(asked):
    return {
        "processes": [looked_at(pid) for pid in other_processes()],
        "there": [path for path in asked["paths"] if os.path.exists(path)],
        "said": said_anywhere(asked["texts"]),
    }


def write(found):
    (here / "found.half").write_text(json.dumps(found))
    (here / "found.half").rename(here / "found.json")


if sys.argv[2] == "serve":
    server = subprocess.Popen([sys.executable, "-I", str(here / "small.py"), "http"])
    while not (here / "go.json").exists():
        time.sleep(0.01)
    write(probe(json.loads((here / "go.json").read_text())))
    server.wait()
else:
    write(ways_out(int(sys.argv[3]), int(sys.argv[2])))
    sys.exit(9)
'''
WAIT_S = 60.0


def put(project: Path) -> Path:
    put_small(project)
    (project / FILE).write_text(SCRIPT.lstrip())
    return project


def gated() -> Server:
    return Server("probe", ("/usr/bin/python3", "-I", f"{{project}}/{FILE}", "{project}", "serve"))


def direct(port: int) -> Server:
    """It has the socket itself, and tries to reach that port of the host by it."""
    words = (f"{{project}}/{FILE}", "{project}", str(port), "{fd}")
    return Server(
        "probe",
        ("/usr/bin/python3", "-I", *words),
        port_by=PortBy.SOCKET,
        takes_token="SECRET",
        ready_s=30.0,
    )


async def go(project: Path, paths: list[str], texts: list[str]) -> dict[str, Any]:
    """Asks the one in that project to try."""
    half = project / "go.half"
    half.write_text(json.dumps({"paths": paths, "texts": texts}))
    half.rename(project / "go.json")
    async with asyncio.timeout(WAIT_S):
        while not (project / "found.json").exists():
            await asyncio.sleep(0.01)
    found: dict[str, Any] = json.loads((project / "found.json").read_text())
    return found
