"""Where the daemon and its hub are: found from arguments and the environment, without importing
much; and how the daemon is started when it does not run.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False

if TYPE_CHECKING:
    import _socket
    from collections.abc import Callable, Mapping


MAX_ADDRESS = 107
"""Bytes that fit into the address of a Unix socket."""
CONNECT_S = 10.0
"""A local connection is made at once; one over a network in a moment."""
LOCAL_HOST = "carrel"
"""What stands in the Host header on a Unix socket, where there is no host."""


class Address:
    """A Unix socket (`socket`), or a host and port. `data` is the data folder whose daemon
    may be started when it does not run; empty when it is somebody else's."""

    __slots__ = ("data", "host", "port", "socket", "tls", "token")

    def __init__(
        self,
        *,
        socket: str = "",
        data: str = "",
        host: str = "",
        port: int = 0,
        tls: bool = False,
        token: str = "",
    ) -> None:
        self.socket = socket
        self.data = data
        self.host = host
        self.port = port
        self.tls = tls
        self.token = token

    @property
    def authority(self) -> str:
        if self.socket:
            return LOCAL_HOST
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        return self.socket or self.authority


def find_address(
    env: Mapping[str, str] | None = None,
    *,
    data: str = "",
    socket: str = "",
    url: str = "",
    token: str = "",
) -> Address:
    """What is said first counts: a socket, a URL, a data folder; then CARREL_URL and
    CARREL_TOKEN; then the socket in the data folder. `MessageInvalid` for a bad URL."""
    env = os.environ if env is None else env
    if not (socket or url or data):
        url = env.get("CARREL_URL", "")
    if socket:
        return Address(socket=os.path.abspath(socket), token=token)
    if url.startswith("unix://"):
        return Address(socket=url.removeprefix("unix://"), token=token)
    if url:
        return _of_url(url, token or env.get("CARREL_TOKEN", ""))
    folder = os.path.abspath(data) if data else data_folder(env)
    return Address(socket=f"{folder}/daemon/socket", data=folder)


def data_folder(env: Mapping[str, str]) -> str:
    """The same answer as `carrel.config`, which is asked whenever this is not plain: what it
    imports takes longer than most commands."""
    folder = env.get("CARREL_DATA", "")
    if folder.startswith("/") and "\0" not in folder:
        return folder
    usual = "" if folder else _usual_data(env)
    if usual and not _may_name_data(env):
        return usual
    from carrel.config import load_settings

    return str(load_settings(env).data)


def _usual_data(env: Mapping[str, str]) -> str:
    if os.geteuid() == 0:
        return "/var/lib/carrel"
    return _own_folder(env, "XDG_DATA_HOME", ".local/share")


def _own_folder(env: Mapping[str, str], variable: str, usual: str) -> str:
    """A person's folder of the XDG specification; empty when it takes more to find it."""
    shared, home = env.get(variable, ""), env.get("HOME", "")
    if shared.startswith("/"):
        return f"{shared.rstrip('/')}/carrel"
    return f"{home.rstrip('/')}/{usual}/carrel" if home.startswith("/") else ""


def _may_name_data(env: Mapping[str, str]) -> bool:
    """Whether the settings' file has to be read properly."""
    own = _own_folder(env, "XDG_CONFIG_HOME", ".config")
    folder = "/etc/carrel" if os.geteuid() == 0 else own
    if env.get("CARREL_CONFIG") or not folder:
        return True
    try:
        with open(f"{folder}/config.toml", "rb") as file:
            return b"data" in file.read()
    except FileNotFoundError:
        return False
    except OSError:
        return True


def _of_url(url: str, token: str) -> Address:
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _bad_url(url) from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise _bad_url(url)
    if parts.path.strip("/") or parts.query or parts.fragment or parts.username:
        raise _bad_url(url)
    tls = parts.scheme == "https"
    usual = 443 if tls else 80
    return Address(
        host=parts.hostname, port=usual if port is None else port, tls=tls, token=token.strip()
    )


def _bad_url(url: str) -> Exception:
    from carrel.domain.errors import MessageInvalid

    return MessageInvalid(
        f"{url!r} is not the address of a daemon.", hint="Write http://host:port or unix:///path."
    )


# The hub: in a space, of a data folder, or at an address

SOCKET = "hub.sock"
"""Beside the daemon's own socket in the data folder."""
INSIDE = "CARREL_HUB"
"""In a space this names the socket through which one is that space."""
PATH = "/v1/hub"
"""Where the API has the hub, as a WebSocket."""


class HubAddress:
    """`lines`: a socket of the hub's own, with a line for each envelope; else a WebSocket of
    the daemon's API. `inside`: whoever comes through it is a space's agent."""

    __slots__ = ("inside", "lines", "place")

    def __init__(self, place: Address, *, lines: bool, inside: bool = False) -> None:
        self.place = place
        self.lines = lines
        self.inside = inside


def find_hub(
    env: Mapping[str, str] | None = None,
    *,
    data: str = "",
    socket: str = "",
    url: str = "",
    token: str = "",
) -> HubAddress:
    """What is said first counts: a socket of the hub, a URL, a data folder; then CARREL_HUB;
    then as `find_address`. `MessageInvalid` for a bad URL."""
    env = os.environ if env is None else env
    inside = "" if socket or url or data else env.get(INSIDE, "")
    if socket or inside:
        path = os.path.abspath(socket or inside)
        return HubAddress(Address(socket=path), lines=True, inside=bool(inside))
    place = find_address(env, data=data, url=url, token=token)
    if not place.data:
        return HubAddress(place, lines=False)
    own = Address(socket=f"{os.path.dirname(place.socket)}/{SOCKET}", data=place.data)
    return HubAddress(own, lines=True)


# Start on demand

TRIES = 3
"""One may meet a daemon that is just ending; hardly two in a row."""


def starter(
    place: Address, allowed: bool = True, env: Mapping[str, str] | None = None
) -> Callable[[], None] | None:
    """What starts the daemon of a data folder; None when it is not ours to start, or the
    caller or CARREL_NO_START forbids it."""
    env = os.environ if env is None else env
    if not allowed or not place.data or env.get("CARREL_NO_START"):
        return None
    folder = place.data

    def start() -> None:
        from carrel.daemon import control
        from carrel.domain.errors import DaemonError, DaemonRunning, DaemonUnavailable

        for left in reversed(range(TRIES)):
            try:
                control.start(folder)
            except DaemonRunning:
                # Somebody else was faster, which is just as well.
                return
            except DaemonUnavailable:
                raise
            except DaemonError:
                # The one that had the folder ended while we waited for it.
                if not left:
                    raise
            else:
                return

    return start


def check_peer(sock: _socket.socket, place: Address) -> None:
    """Who answers at the socket of a data folder is the daemon of this user, or root's: another
    account may have made the folder. `DaemonUnavailable`."""
    if not place.data:
        return
    import _socket

    found = sock.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
    # A pid, a uid and a gid.
    uid = int.from_bytes(found[4:8], sys.byteorder)
    if uid not in (0, os.geteuid()):
        from carrel.domain.errors import DaemonUnavailable

        raise DaemonUnavailable(
            f"At the socket in {place.data}, another account answers (user {uid}).",
            hint="Choose a data folder of your own (--data, CARREL_DATA), or become that user.",
        )


def connect_unix(connect: Callable[[str], None], path: str) -> None:
    """A path that does not fit into an address is reached through its folder."""
    if len(os.fsencode(path)) <= MAX_ADDRESS:
        connect(path)
        return
    folder, name = os.path.split(path)
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        connect(f"/proc/self/fd/{descriptor}/{name}")
    finally:
        os.close(descriptor)
