"""Keys and configuration of SSH, by OpenSSH's own `ssh-keygen`.

Below `ssh` in the data folder are the user's key, the key that signs those of hosts, and the
configuration of the client. A space has the rest in the folder that its sandboxes see, and cannot
write in. Its host key has a certificate, so that a client trusts one signature and nobody has to
keep a list of hosts. An agent may read the key of its own host: nobody is led elsewhere by it, for
the daemon alone says which space a connection goes to.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from carrel.domain.agents import Attaching
from carrel.domain.errors import SshUnavailable
from carrel.domain.hub import SHELLS
from carrel.domain.ssh import DOMAIN, LOGIN, MARK, TAKEN, SshAccess, SshService
from carrel.domain.systems import CommandPlace

SERVER = "sshd"
_PLACES = ("/usr/sbin", "/usr/local/sbin", "/usr/bin", "/usr/local/bin")
"""Sandboxes see these folders of the host."""
SFTP_SERVER = "/usr/lib/openssh/sftp-server"
SFTP = "sftp"
KEYGEN_S = 20.0
"""It takes milliseconds; a machine without entropy waits for some."""
MISSING = "OpenSSH's programs are missing: {}."
INSTALL = (
    "Install them: sudo apt-get install openssh-server openssh-client"
    " (the service of the machine itself may stay off)."
)


def find_server() -> str:
    """Raises `SshUnavailable`."""
    found = shutil.which(SERVER, path=":".join(_PLACES))
    if found is None:
        raise SshUnavailable(MISSING.format(SERVER), hint=INSTALL)
    return found


class SshFiles:
    """Implements `carrel.domain.ssh.SshKeys`."""

    def __init__(self, data: Path, program: Sequence[str], shown_at: str, workspace: str) -> None:
        """`program` is the command of this program, `shown_at` where a sandbox sees the folder of
        an `SshService`."""
        self._data = data
        self._folder = data / "ssh"
        self._program = program
        self._shown_at = shown_at
        self._workspace = workspace
        self._lock = threading.Lock()

    # The client

    def access(self) -> SshAccess:
        with self._lock, as_unavailable():
            self._make_own()
            known = self._folder / "known_hosts"
            block = self._block(known)
            put_text(known, f"@cert-authority *{DOMAIN} {self._public('hosts')}\n")
            words = shlex.join([*self._program, "--data", str(self._data), "ssh-proxy"])
            # A configuration of ssh has no words of several lines.
            put_text(self._folder / "proxy", f'#!/bin/sh\nexec {words} "$@"\n', 0o700)
            config = self._folder / "config"
            put_text(config, block)
            return SshAccess(config, block, self._folder / "id_ed25519", known)

    def _make_own(self) -> None:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        for name, comment in (("id_ed25519", LOGIN), ("hosts", "hosts of carrel")):
            if not (self._folder / name).exists():
                make_key(self._folder / name, comment)

    def _public(self, name: str) -> str:
        return (self._folder / f"{name}.pub").read_text().strip()

    def _block(self, known: Path) -> str:
        proxy = shlex.quote(str(self._folder / "proxy")).replace("%", "%%")
        lines = (
            f"User {LOGIN}",
            f"ProxyCommand {proxy} %n",
            "ProxyUseFdpass yes",
            f"IdentityFile {_quoted(self._folder / 'id_ed25519')}",
            "IdentitiesOnly yes",
            f"UserKnownHostsFile {_quoted(known)}",
            "StrictHostKeyChecking yes",
            "CheckHostIP no",
            # Who is at the other end may be a hostile agent that has taken over the sshd. So what
            # it must not have is refused on this side, whatever the rest of the configuration says.
            "UpdateHostKeys no",
            # Nobody is asked for a password, and no ticket is handed over.
            "PreferredAuthentications publickey",
            "ForwardAgent no",
            # Then -A has nothing to forward either.
            "IdentityAgent none",
            "ForwardX11 no",
        )
        return "\n  ".join((f"Host *{DOMAIN}", *lines)) + "\n"

    # A host

    def serve(self, service: SshService) -> Sequence[str]:
        server = find_server()
        with self._lock, as_unavailable():
            self._make_own()
            folder = service.folder
            folder.mkdir(mode=0o755, exist_ok=True)
            self._make_host(folder, service.names)
            put_text(folder / "authorized_keys", self._public("id_ed25519") + "\n", 0o644)
            name = service.place.value + ("-agent-forwarding" if service.agent else "")
            forced = ""
            if service.conversation is not None:
                name += "-conversation"
                forced = f"ForceCommand {self._shown_at}/{name}.sh\n"
                put_text(folder / f"{name}.sh", _conversation(service.conversation), 0o755)
            if service.place is CommandPlace.DEV:
                self._put_sftp(folder)
            put_text(folder / "environment", _exports(service), 0o644)
            put_text(folder / "shell", self._shell(), 0o755)
            put_text(folder / f"{name}.conf", self._settings(service) + forced, 0o644)
        variables = f"CARREL_SSH_PLACE={service.place.value} {MARK}={service.run_id}"
        settings = ("-f", f"{self._shown_at}/{name}.conf", "-o", f"SetEnv={variables}")
        return (server, "-i", "-e", *settings)

    def _sftp(self, service: SshService) -> str:
        there = service.place is CommandPlace.DEV and (service.folder / SFTP).exists()
        return f"{self._shown_at}/{SFTP}" if there else f"internal-sftp -d {self._workspace}"

    def _put_sftp(self, folder: Path) -> None:
        """The host's program, with its loader and libraries: an image need not have one. Without it
        the files are those that the agent sees."""
        program = Path(SFTP_SERVER)
        parts = _parts(program)
        if not parts:
            return
        at = folder / "server"
        at.mkdir(mode=0o755, exist_ok=True)
        loader = ""
        for part in (program, *parts):
            if part.name.startswith("ld-"):
                loader = part.name
            kept = at / part.name
            if not kept.exists() or _version(kept) != _version(part):
                draft = at / f".{part.name}.new"
                shutil.copy2(part, draft)
                draft.chmod(0o755)
                draft.rename(kept)
        there = f"{self._shown_at}/server"
        started = f"{there}/{loader} --library-path {there} {there}/{program.name}"
        put_text(folder / SFTP, f"#!/bin/sh\nexec {started} -d {self._workspace}\n", 0o755)

    def _make_host(self, folder: Path, names: Sequence[str]) -> None:
        """Its certificate is for the names that the space has now."""
        key, signed = folder / "host_key", folder / "host_names"
        principals = ",".join(names)
        # One that another key has signed is believed by nobody: the owner may have removed all.
        wanted = f"{principals} {self._public('hosts')}\n"
        if not key.exists():
            make_key(key, "host")
            if os.geteuid() == 0:
                # It belongs to nobody in there; the folders around it let nobody else in.
                key.chmod(0o644)
            signed.unlink(missing_ok=True)
        if signed.exists() and signed.read_text() == wanted:
            return
        _keygen(
            *("-s", str(self._folder / "hosts"), "-I", "carrel", "-h", "-n", principals),
            str(folder / "host_key.pub"),
        )
        put_text(signed, wanted, 0o644)

    def _settings(self, service: SshService) -> str:
        at = self._shown_at
        return "\n".join(
            (
                f"HostKey {at}/host_key",
                f"HostCertificate {at}/host_key-cert.pub",
                f"AuthorizedKeysFile {at}/authorized_keys",
                f"AllowUsers {LOGIN}",
                "AuthenticationMethods publickey",
                "PidFile none",
                "UsePAM no",
                # Whose files these are is not for a process in the sandbox to know.
                "StrictModes no",
                "UseDNS no",
                "PrintMotd no",
                "PrintLastLog no",
                "LoginGraceTime 60",
                "MaxSessions 100",
                "LogLevel VERBOSE",
                # What others use takes 75 ms more of both sides, against who records a socket of
                # this machine.
                "KexAlgorithms curve25519-sha256,curve25519-sha256@libssh.org,ecdh-sha2-nistp256",
                f"AllowAgentForwarding {'yes' if service.agent else 'no'}",
                "X11Forwarding no",
                "PermitTunnel no",
                "StreamLocalBindUnlink yes",
                "PermitUserEnvironment no",
                "PermitUserRC no",
                "AcceptEnv LANG LC_* COLORTERM TERM_PROGRAM TERM_PROGRAM_VERSION NO_COLOR",
                f"Subsystem sftp {self._sftp(service)}",
                "",
            )
        )

    def _shell(self) -> str:
        """What the account has as its shell. With an image the command goes where that is, by the
        agent's own shell; else it has what every command in the sandbox has: variables, folder, and
        the shell that people expect."""
        return (
            "#!/bin/sh\n"
            "place=$CARREL_SSH_PLACE\n"
            "unset CARREL_SSH_PLACE MAIL\n"
            f"cd {shlex.quote(self._workspace)} 2>/dev/null\n"
            'if [ "$place" = dev ]; then\n'
            f"  export {TAKEN}=1\n"
            f'  exec "{os.path.dirname(self._shown_at)}/{SHELLS}/bash" "$@"\n'
            "fi\n"
            f'. "{self._shown_at}/environment"\n'
            'case "$SHELL" in\n'
            '  "" | /bin/sh) [ ! -x /bin/bash ] || SHELL=/bin/bash ;;\n'
            "esac\n"
            "export SHELL\n"
            'exec "${SHELL:-/bin/sh}" "$@"\n'
        )


def _parts(program: Path) -> list[Path]:
    """Its libraries and its loader; nothing where that cannot be told."""
    try:
        done = subprocess.run(
            ["ldd", str(program)], capture_output=True, text=True, timeout=KEYGEN_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return []
    found = [Path(word) for word in done.stdout.split() if word.startswith("/")]
    return found if any(one.name.startswith("ld-") for one in found) else []


def _version(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def _exports(service: SshService) -> str:
    return "".join(
        f"export {name}={shlex.quote(value)}\n" for name, value in service.environment.items()
    )


def _conversation(how: Attaching) -> str:
    """Who asks for a command gets that, as in every sandbox."""
    seen = f"cd {shlex.quote(how.cwd)} && exec {shlex.join(how.argv)}\n" if how.argv else ""
    none = "echo 'No agent is in a terminal here. Start it: carrel attach SPACE' >&2\nexit 1\n"
    return (
        "#!/bin/sh\n"
        'case "$SSH_ORIGINAL_COMMAND" in\n'
        '  "") ;;\n'
        "  internal-sftp*) exec /usr/lib/openssh/sftp-server ;;\n"
        '  *) exec "${SHELL:-/bin/sh}" -c "$SSH_ORIGINAL_COMMAND" ;;\n'
        "esac\n" + (seen or none)
    )


def _quoted(path: Path) -> str:
    """As in a configuration of ssh. Its versions differ in how they read a quotation mark or a
    backslash, and it fills in variables."""
    # A percent sign begins what ssh fills in.
    text = str(path).replace("%", "%%")
    unclear = any(one in text for one in ('"', "\n", "\\", "${"))
    if unclear or not _is_text(text):
        raise SshUnavailable(
            "The name of the data folder cannot be written in a configuration of ssh.",
            hint="Choose another one: CARREL_DATA.",
        )
    return f'"{text}"'


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def make_key(path: Path, comment: str) -> None:
    draft = path.with_name(f"{path.name}.new")
    for old in (draft, draft.with_name(f"{draft.name}.pub")):
        old.unlink(missing_ok=True)
    _keygen("-t", "ed25519", "-N", "", "-C", comment, "-f", str(draft))
    # The other half first: who finds the key finds both.
    os.replace(f"{draft}.pub", f"{path}.pub")
    os.replace(draft, path)


def _keygen(*arguments: str) -> None:
    program = shutil.which("ssh-keygen")
    if program is None:
        raise SshUnavailable(MISSING.format("ssh-keygen"), hint=INSTALL)
    try:
        done = subprocess.run(
            [program, "-q", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=KEYGEN_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SshUnavailable("ssh-keygen does not end.", hint="Try again.") from None
    if done.returncode != 0:
        raise SshUnavailable(
            f"ssh-keygen failed: {done.stderr.strip()[-200:]}", hint="Look into its message."
        )


def put_text(path: Path, text: str, mode: int = 0o600) -> None:
    """Whole or not at all; what is the same already is left alone."""
    with contextlib.suppress(FileNotFoundError):
        if path.read_text() == text:
            return
    draft = path.with_name(f".{path.name}.new")
    draft.write_text(text)
    draft.chmod(mode)
    draft.rename(path)


@contextlib.contextmanager
def as_unavailable() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SshUnavailable(
            f"The files of SSH cannot be written: {error.strerror or error}.",
            hint="Look at the data folder and the room on its disk.",
        ) from error
