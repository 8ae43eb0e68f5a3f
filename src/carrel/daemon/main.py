"""The daemon, from its first step to its last.

    python -P -m carrel.daemon [--data DIR] [--listen HOST:PORT] [--detach] [--ready-fd N]

It ends on SIGTERM, SIGINT, or when an administrator asks for it. What runs in spaces goes on.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import logging.handlers
import os
import resource
import signal
import socket
import sys
import threading
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Callable, MutableMapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TextIO, TypeVar

from carrel import __version__
from carrel.app.hub import SpaceSockets
from carrel.app.service import open_service
from carrel.config import Settings
from carrel.daemon import places
from carrel.domain.access import LOCAL, working_for
from carrel.domain.errors import CarrelError
from carrel.domain.spaces import SpaceState
from carrel.interfaces.dev_shell import DevShellListener
from carrel.interfaces.http.api import Api, make_api
from carrel.interfaces.http.lifetime import Shutdown
from carrel.interfaces.http.services import ApiOptions, ApiServices
from carrel.interfaces.hub.sockets import HubListener
from carrel.interfaces.ssh import SshSocket
from carrel.linux import libc, systemd
from carrel.linux.reserve import Reserve
from carrel.service.journal import Journal

if TYPE_CHECKING:
    from carrel.config import Settings


THREADS = 32
"""For file-system work. It waits for disks more than it computes, so more than there are cores."""
THREAD_SHARES = 4
"""One caller has this part of them at most."""
TELL_S = 1.0
"""Between two words to whoever waits for the end."""
LONGEST_S = 60.0
"""For the end itself. Only the removal of large trees takes that long, on busy threads; the next
daemon goes on with it, as after a crash."""
SLIM_S = 30.0
SLIM_BYTES = 96 << 20
"""An idle daemon needs less. One that has more after large answers or many connections mostly has
it because the C library keeps what was freed: so often it is made to give that back."""
_log = logging.getLogger("carrel.daemon")


class ReadyListener:
    """Whoever waits for the daemon to serve: a client, or systemd. It hears that it does, or
    why not; systemd also that it ends."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
        self._supervisor = Supervisor(os.environ)

    def ready(self, address: str) -> None:
        self._say(f"ready {os.getpid()} {address}\n")
        self._supervisor.serving()

    def ending(self) -> None:
        self._supervisor.ending()

    def failed(self, error: CarrelError) -> None:
        self._say("\0".join((error.code, error.message, error.hint)))

    def _say(self, text: str) -> None:
        if self._descriptor is None:
            return
        with contextlib.suppress(OSError):
            os.write(self._descriptor, text.encode("utf-8", "replace"))
        os.close(self._descriptor)
        self._descriptor = None


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status: 0 after an ordinary end, 1 when it could not start."""
    given = _parse(argv)
    open_standard_streams()
    if given.detach:
        detach(-1 if given.ready_fd is None else given.ready_fd)
    settle()
    starter = ReadyListener(given.ready_fd)
    try:
        _run(given, starter)
    except CarrelError as error:
        starter.failed(error)
        _log.error("%s", error)
        if not given.detach:
            with contextlib.suppress(OSError):
                print(f"carrel: {error}", file=sys.stderr)
        return 1
    finally:
        leave_standard_streams()
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="carrel.daemon", description="Carrel's daemon.")
    parser.add_argument("--data", help="the data folder (else CARREL_DATA, else the usual one)")
    parser.add_argument("--listen", metavar="HOST:PORT", help="also on TCP; port 0: any")
    parser.add_argument("--detach", action="store_true", help="leave the terminal; log to a file")
    parser.add_argument("--ready-fd", type=int, metavar="N", help="say there that it serves")
    return parser.parse_args(argv)


def _run(given: argparse.Namespace, starter: ReadyListener) -> None:
    settings = _settings(given)
    places.check_own(settings.data)
    # The lock says whose it is, for which a full disk has no room.
    Reserve(settings.data / "reserve").ensure()
    with places.held(settings.data):
        if given.detach:
            log_to_file(places.log(settings.data))
        else:
            log_to_stderr()
        _join_scope(settings.data)
        try:
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                runner.run(serve(settings, starter))
        except CarrelError:
            raise
        except Exception as error:
            _log.exception("the daemon failed")
            failure = f"{type(error).__name__}: {error}"
            raise CarrelError(failure, hint=f"See {places.log(settings.data)}") from error


def _join_scope(data: Path) -> None:
    """Where systemd manages the machine, limits of spaces need a part of the tree of control groups
    that it has delegated. The launcher, and all that it starts, is in there with us."""
    if not systemd.manages_us():
        return
    refused = systemd.join_scope(places.scope(data), f"Carrel, {data}")
    if refused:
        _log.warning("without a scope of systemd's, limits are not enforced: %s", refused)


def _settings(given: argparse.Namespace) -> Settings:
    from carrel.config import load_settings

    env = dict(os.environ)
    if given.data:
        env["CARREL_DATA"] = os.path.abspath(given.data)
    settings = load_settings(env)
    if given.listen:
        import msgspec

        settings = msgspec.structs.replace(settings, listen=given.listen)
    return settings


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


P = ParamSpec("P")
T = TypeVar("T")


class SharedThreads(ThreadPoolExecutor):
    """The owner's threads, and as many for all other callers, of which each has a share: however
    many of them wait for a slow server, or for a folder that a process in a space keeps locked,
    the owner waits for none. What is beyond a share waits for one of the caller's own to end."""

    def __init__(self, most: int) -> None:
        super().__init__(most, "carrel")
        self._others = ThreadPoolExecutor(most, "carrel-others")
        self._share = max(1, most // THREAD_SHARES)
        self._guard = threading.Lock()
        self._running: Counter[str] = Counter()
        self._waiting: defaultdict[str, deque[Callable[[], None]]] = defaultdict(deque)

    def submit(self, work: Callable[P, T], /, *args: P.args, **options: P.kwargs) -> Future[T]:
        name = working_for.get()
        if name == LOCAL.name:
            return super().submit(work, *args, **options)
        future: Future[T] = Future()
        wanted = partial(work, *args, **options)

        def begin() -> None:
            self._others.submit(self._do, name, future, wanted)

        with self._guard:
            if self._running[name] >= self._share:
                self._waiting[name].append(begin)
                return future
            self._running[name] += 1
        begin()
        return future

    def _do(self, name: str, future: Future[T], work: Callable[[], T]) -> None:
        try:
            if future.set_running_or_notify_cancel():
                future.set_result(work())
        except BaseException as error:
            future.set_exception(error)
        finally:
            self._go_on(name)

    def _go_on(self, name: str) -> None:
        with self._guard:
            waiting = self._waiting.get(name)
            if waiting:
                begin = waiting.popleft()
            else:
                self._waiting.pop(name, None)
                self._running[name] -= 1
                if not self._running[name]:
                    del self._running[name]
                return
        # At the daemon's end nothing more is begun.
        with contextlib.suppress(RuntimeError):
            begin()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._others.shutdown(wait, cancel_futures=cancel_futures)
        super().shutdown(wait, cancel_futures=cancel_futures)


async def serve(settings: Settings, starter: ReadyListener) -> None:
    """Until it is told to end."""
    from carrel.daemon.server import DaemonServer, bound

    ending = asyncio.Event()
    _on_signals(ending.set)
    asyncio.get_running_loop().set_default_executor(SharedThreads(THREADS))
    async with (
        open_api(settings, ending.set) as (api, closing, under_way),
        bound(settings.data, settings.listen, settings.instances.legacy_port) as found,
    ):
        server = DaemonServer(api, closing, settings.tcp_connections)
        await server.open(found.sockets)
        if found.older is not None:
            await server.open_older(found.older, settings.data)
        # What is here now stays: there is no need to look through it again and again.
        gc.collect()
        gc.freeze()
        _log.info("serving %s %s", places.socket(settings.data), found.address)
        starter.ready(found.address)
        slimming = asyncio.create_task(_stay_slim())
        await ending.wait()
        slimming.cancel()
        _log.info("ending")
        starter.ending()
        telling = asyncio.create_task(_tell_ending(places.ending(settings.data), under_way))
        await server.close()
    await asyncio.get_running_loop().shutdown_default_executor()
    telling.cancel()
    with contextlib.suppress(OSError):
        os.unlink(places.ending(settings.data))
    _log.info("ended")


async def _tell_ending(path: str, under_way: Callable[[], str]) -> None:
    """Writes down what is still done, now and then; ends the process when it takes too long."""
    until = asyncio.get_running_loop().time() + LONGEST_S
    while asyncio.get_running_loop().time() < until:
        with contextlib.suppress(OSError):
            # Whoever reads it meanwhile reads a whole one.
            with open(f"{path}.new", "w", encoding="utf-8") as file:
                file.write(under_way())
            os.replace(f"{path}.new", path)
        await asyncio.sleep(TELL_S)
    _log.warning("ended before this was done, which the next daemon goes on with: %s", under_way())
    os._exit(0)


async def _stay_slim() -> None:
    while True:
        await asyncio.sleep(SLIM_S)
        if _resident() > SLIM_BYTES:
            gc.collect()
            await asyncio.to_thread(libc.give_back_memory)


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def _on_signals(end: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, end)


# Becoming a process of its own, and keeping one's footing as one.

LOG_BYTES = 10 << 20
LOG_KEPT = 3
UMASK = 0o022
"""Modes are as the code says, whatever the caller's own were."""
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class LogFile(logging.handlers.RotatingFileHandler):
    """Also what goes to the standard streams, past the loggers, stays in the newest file."""

    def __init__(self, path: str) -> None:
        super().__init__(path, maxBytes=LOG_BYTES, backupCount=LOG_KEPT, encoding="utf-8")
        self._point()

    def _open(self) -> TextIOWrapper:
        stream = super()._open()
        os.fchmod(stream.fileno(), 0o600)
        return stream

    def doRollover(self) -> None:
        super().doRollover()
        self._point()

    def _point(self) -> None:
        if self.stream is not None:
            for number in (1, 2):
                os.dup2(self.stream.fileno(), number)


def open_standard_streams() -> None:
    """A daemon that was started without them would get files as its standard error."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def leave_standard_streams() -> None:
    """What a closed terminal did not take goes nowhere; it is not to spoil the exit status."""
    streams: tuple[tuple[int, TextIO | None], ...] = ((1, sys.stdout), (2, sys.stderr))
    for number, stream in streams:
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, number)
            os.close(null)


def detach(ready: int) -> None:
    """Leaves session, terminal, folder and the caller's descriptors. The process that called
    ends here; another goes on."""
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    os.chdir("/")
    os.closerange(3, ready)
    os.closerange(max(3, ready + 1), _most_descriptors())


def settle() -> None:
    os.umask(UMASK)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Each connection, each command and each stream of one takes a descriptor.
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    _leave_no_core()


def _leave_no_core() -> None:
    """Keys pass through this process, and through the launcher, which inherits this. Not 0:
    with that the kernel would still hand a core to a program, where it is set up so."""
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    limit = 1 if most == resource.RLIM_INFINITY else min(1, most)
    resource.setrlimit(resource.RLIMIT_CORE, (limit, limit))


def log_to_file(path: str) -> None:
    _configure(LogFile(path))


def log_to_stderr() -> None:
    _configure(logging.StreamHandler(sys.stderr))


def _configure(handler: logging.Handler) -> None:
    # A log that cannot be written is no reason to end.
    logging.raiseExceptions = False
    handler.setFormatter(logging.Formatter(_FORMAT))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    for name in ("uvicorn.error", "uvicorn.access", "asyncio", "websockets"):
        logging.getLogger(name).setLevel(logging.WARNING)


def _most_descriptors() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        return max((int(name) for name in os.listdir("/proc/self/fd")), default=soft) + 1
    except OSError:
        return soft


# Telling systemd, if it is what started the daemon, that it serves and that it ends.

VARIABLE = "NOTIFY_SOCKET"


class Supervisor:
    def __init__(self, env: MutableMapping[str, str]) -> None:
        """Takes the address out of the environment: it is not for the daemon's children."""
        path = env.pop(VARIABLE, "")
        # A name that begins with @ is of no file.
        self._address = f"\0{path[1:]}" if path.startswith("@") else path

    def serving(self) -> None:
        self._tell(f"READY=1\nMAINPID={os.getpid()}\n")

    def ending(self) -> None:
        self._tell("STOPPING=1\n")

    def _tell(self, state: str) -> None:
        """Whoever does not listen does not need to know."""
        if not self._address:
            return
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as own,
        ):
            own.sendto(state.encode(), self._address)


# The service and the interface to it, put together.

_CHANGING = {
    SpaceState.CREATING: "made",
    SpaceState.STOPPING: "stopped",
    SpaceState.REMOVING: "removed",
}


@asynccontextmanager
async def open_api(
    settings: Settings, shutdown: Callable[[], None]
) -> AsyncIterator[tuple[Api, Shutdown, Callable[[], str]]]:
    """The caller holds the data folder's lock. The last says what is done to spaces now."""
    async with open_service(settings) as found:
        services = ApiServices(
            operations=found.operations,
            spaces=found.spaces,
            runs=found.runs,
            hangups=found.hangups,
            context=found.context,
            files=found.files,
            tokens=found.tokens,
            feed=found.feed,
            hub=found.hub,
            instances=found.instances,
            requests=found.requests,
        )
        options = ApiOptions(
            data=settings.data,
            version=__version__,
            shutdown=shutdown,
            hosts=frozenset(settings.allowed_hosts),
            origins=frozenset(settings.allowed_origins),
        )

        def ending() -> None:
            """What is told to end starts nothing."""
            found.app.launcher.retire()
            found.requests.ending()

        closing = Shutdown(ending)
        listening = HubListener(found.hub, found.mcp)
        cgroups = found.app.enforcement.cgroups
        sockets = SpaceSockets(
            *(listening, cgroups, found.open_spaces, found.journal),
            DevShellListener(found.dev_shells),
        )
        folder = Path(places.make_folder(settings.data))
        listening.open_local(folder)
        ssh = SshSocket(found.ssh_listener)
        ssh.open(folder)
        # It asks by that socket.
        await found.ssh_listener.take_up()
        sockets.open_all()
        found.store.on_events(sockets.heard)
        try:
            yield make_api(services, options, closing), closing, partial(_under_way, found.journal)
        finally:
            ssh.close()
            listening.close_all()


def _under_way(journal: Journal) -> str:
    """As "3 spaces are being removed"; empty when nothing is."""
    states = Counter(space.state for space in journal.all())
    counted = [(states[state], word) for state, word in _CHANGING.items() if states[state]]
    return ", ".join(
        f"{count} {'space is' if count == 1 else 'spaces are'} being {word}"
        for count, word in counted
    )
