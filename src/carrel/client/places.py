"""Where the daemon is: found from arguments and the environment, without importing much."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_ADDRESS = 107
"""Bytes that fit into the address of a Unix socket."""
LOCAL_HOST = "carrel"
"""What stands in the Host header on a Unix socket, where there is no host."""


class Place:
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


def find_place(
    env: Mapping[str, str] | None = None,
    *,
    data: str = "",
    socket: str = "",
    url: str = "",
    token: str = "",
) -> Place:
    """What is said first counts: a socket, a URL, a data folder; then CARREL_URL and
    CARREL_TOKEN; then the socket in the data folder. `MessageInvalid` for a bad URL."""
    env = os.environ if env is None else env
    if not (socket or url or data):
        url = env.get("CARREL_URL", "")
    if socket:
        return Place(socket=os.path.abspath(socket), token=token)
    if url.startswith("unix://"):
        return Place(socket=url.removeprefix("unix://"), token=token)
    if url:
        return _of_url(url, token or env.get("CARREL_TOKEN", ""))
    folder = os.path.abspath(data) if data else data_folder(env)
    return Place(socket=f"{folder}/daemon/socket", data=folder)


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


def _of_url(url: str, token: str) -> Place:
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
    return Place(
        host=parts.hostname, port=usual if port is None else port, tls=tls, token=token.strip()
    )


def _bad_url(url: str) -> Exception:
    from carrel.domain.errors import MessageInvalid

    return MessageInvalid(
        f"{url!r} is no address of a daemon.", hint="Write http://host:port or unix:///path."
    )
