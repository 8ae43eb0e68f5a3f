"""How fast a space is by SSH, beside Debian's `sshd` on a port of loopback.

    python bench/ssh.py [--megabytes 200] [--many 50] [--rounds 5] [--json]

All use the same client, key and key exchange. *Multiplexed* is a command on a connection that is
there already; *idle* is what a space has running for SSH while nobody is connected. *Listener* is
`carrel ssh-listen`: it decrypts and encrypts all of it once more, and has no target.
"""

from __future__ import annotations

import argparse
import os
import pwd
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.measuring import Board, Spread, say, settle
from bench.own_spaces import Daemon, open_daemon
from bench.places import add_common_options, positive, run_main, workplace
from bench.reporting import Report, machine
from carrel.client.http import operation
from carrel.linux.processes import start_time
from carrel.ssh.keys import find_server

OWN, PEER, LISTENER = "carrel", "sshd on TCP", "listener"
KINDS = ("connect and `true`", "multiplexed `true`", "bytes in", "bytes out")
TIMEOUT_S = 300.0
SETTINGS = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host
AuthorizedKeysFile {folder}/id.pub
PidFile {folder}/pid
UsePAM no
StrictModes no
UseDNS no
PasswordAuthentication no
KbdInteractiveAuthentication no
MaxStartups 1000
KexAlgorithms curve25519-sha256
Subsystem sftp internal-sftp
"""
CLIENT = """
Host *
  HostName 127.0.0.1
  User {user}
  IdentityFile {identity}
  IdentitiesOnly yes
  StrictHostKeyChecking no
  UserKnownHostsFile {folder}/known
  LogLevel ERROR
  KexAlgorithms curve25519-sha256
  Port {port}
"""


class Host:
    """Something that `ssh` comes into."""

    def __init__(self, name: str, config: Path, host: str, folder: Path) -> None:
        self.name = name
        self._words = ["ssh", "-F", str(config)]
        self._host = host
        self._folder = folder

    def run(self, command: str, *options: str, size: int = 0) -> int:
        """How many bytes it answered; `size` of them are sent."""
        done = subprocess.run(
            [*self._words, *options, self._host, command],
            input=bytes(size),
            stdout=subprocess.PIPE,
            cwd=self._folder,
            timeout=TIMEOUT_S,
            check=True,
        )
        return len(done.stdout)

    @contextmanager
    def connected(self) -> Iterator[tuple[str, ...]]:
        """The options of commands on one connection."""
        options = ("-o", "ControlPath=control")
        words = [*self._words, *options, "-o", "ControlMaster=yes", self._host, "echo up; cat"]
        with subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=self._folder
        ) as process:
            assert process.stdout is not None and process.stdin is not None
            if process.stdout.readline() != b"up\n":
                raise RuntimeError(f"{self.name} cannot be connected to")
            yield options
            process.stdin.close()

    def one_round(self, board: Board, number: int, size: int) -> None:
        kinds = [f"{self.name}: {kind}" for kind in KINDS]
        for _ in range(5):
            with board.timed(kinds[0], number):
                self.run("true")
        with self.connected() as options:
            for _ in range(5):
                with board.timed(kinds[1], number):
                    self.run("true", *options)
        with board.timed(kinds[2], number):
            self.run("cat > /dev/null", size=size)
        with board.timed(kinds[3], number):
            if self.run(f"head -c {size} /dev/zero") != size:
                raise RuntimeError(f"{self.name} lost bytes")

    def at_once(self, count: int) -> int:
        """How many of so many connections at the same time answered."""

        def one(number: int) -> bool:
            return self.run(f"sleep 1; echo {number}") == len(str(number)) + 1

        with ThreadPoolExecutor(count) as pool:
            return sum(pool.map(one, range(count)))


def main() -> None:
    options = parse()
    shown = {name: getattr(options, name) for name in ("megabytes", "many", "rounds")}
    with workplace(options.folder) as place:
        report, board = Report("ssh", shown, machine(place)), Board()
        with open_daemon(place / "data") as daemon:
            space = daemon.client.create(name="bench")
            config = Path(daemon.client.link.json(operation("ssh.access"))["config"])
            own = Host(OWN, config, "bench.carrel", place)
            idle = processes_below(daemon)
            with own_sshd(place / "peer", config.parent / "id_ed25519") as peer:
                listener = by_listener(daemon, place, config.parent / "id_ed25519")
                for number in range(options.rounds + 1):
                    say(f"round {number} of {options.rounds}")
                    for one in (own, peer, listener):
                        settle()
                        one.one_round(board, number, options.megabytes << 20)
                board.forget(0)
                many = own.at_once(options.many)
            tell(report, board)
            report.at_least("connections at once", options.many, "answers", Spread.of([many]))
            report.at_most("idle", 0, "processes", Spread.of([idle]))
            space.remove(force=True)
        report.show(as_json=options.json)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--megabytes", type=positive, default=200, help="in and out")
    parser.add_argument("--many", type=positive, default=50, help="connections at once")
    add_common_options(parser, rounds=5)
    return parser.parse_args()


def tell(report: Report, board: Board) -> None:
    report.add_times(board)
    for kind, wanted in zip(KINDS, (1.0, 1.1, 1 / 0.9, 1 / 0.9), strict=True):
        own, peer = f"{OWN}: {kind}", f"{PEER}: {kind}"
        report.at_most(kind, round(wanted, 2), "x", board.ratio(own, peer))


def processes_below(daemon: Daemon) -> int:
    """Those for SSH that this data folder has begun."""
    found = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        named = b"sshd" in words or b"carrel.ssh." in words
        own = named and os.fsencode(daemon.data) in words
        found += own and start_time(int(pid)) is not None
    return found


def by_listener(daemon: Daemon, folder: Path, identity: Path) -> Host:
    daemon.client.ssh.add_key(Path(f"{identity}.pub").read_text(), "admin")
    port = daemon.client.ssh.listen().port
    config = folder / "listener"
    config.write_text(CLIENT.format(port=port, folder=folder, identity=identity, user="bench"))
    return Host(LISTENER, config, "bench", folder)


@contextmanager
def own_sshd(folder: Path, identity: Path) -> Iterator[Host]:
    """As Debian has it, with the key exchange that spaces have."""
    folder.mkdir()
    keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "host")]
    subprocess.run(keygen, check=True, timeout=TIMEOUT_S)
    shutil.copy(f"{identity}.pub", folder / "id.pub")
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    (folder / "sshd").write_text(SETTINGS.format(port=port, folder=folder))
    config = folder / "client"
    user = pwd.getpwuid(os.geteuid()).pw_name
    config.write_text(CLIENT.format(port=port, folder=folder, identity=identity, user=user))
    if os.geteuid() == 0:
        # Where it would be made at boot.
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    server = [find_server(), "-D", "-e", "-f", str(folder / "sshd")]
    with subprocess.Popen(server, stderr=subprocess.PIPE) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            if b"listening" not in line:
                raise RuntimeError(f"sshd did not start: {line!r}")
            yield Host(PEER, config, "127.0.0.1", folder)
        finally:
            process.terminate()


if __name__ == "__main__":
    run_main(main)
