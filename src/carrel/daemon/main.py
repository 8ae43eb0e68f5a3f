"""The daemon, from its first step to its last.

    python -m carrel.daemon [--data DIR] [--listen HOST:PORT] [--detach] [--ready-fd N]

It ends on SIGTERM, SIGINT, or when an administrator asks for it. What runs in spaces goes on.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from carrel.daemon import detaching, locking, places
from carrel.daemon.notifying import Supervisor
from carrel.domain.errors import CarrelError

if TYPE_CHECKING:
    from carrel.config import Settings

THREADS = 32
"""For file-system work. It waits for disks more than it computes, so more than there are cores."""
_log = logging.getLogger("carrel.daemon")


class Starter:
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
    detaching.open_standard_streams()
    if given.detach:
        detaching.detach(-1 if given.ready_fd is None else given.ready_fd)
    detaching.settle()
    starter = Starter(given.ready_fd)
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
        detaching.leave_standard_streams()
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="carrel.daemon", description="Carrel's daemon.")
    parser.add_argument("--data", help="the data folder (else CARREL_DATA, else the usual one)")
    parser.add_argument("--listen", metavar="HOST:PORT", help="also on TCP; port 0: any")
    parser.add_argument("--detach", action="store_true", help="leave the terminal; log to a file")
    parser.add_argument("--ready-fd", type=int, metavar="N", help="say there that it serves")
    return parser.parse_args(argv)


def _run(given: argparse.Namespace, starter: Starter) -> None:
    settings = _settings(given)
    with locking.held(settings.data):
        if given.detach:
            detaching.log_to_file(places.log(settings.data))
        else:
            detaching.log_to_stderr()
        try:
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                runner.run(serve(settings, starter))
        except CarrelError:
            raise
        except Exception as error:
            _log.exception("the daemon failed")
            failure = f"{type(error).__name__}: {error}"
            raise CarrelError(failure, hint=f"See {places.log(settings.data)}") from error


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


async def serve(settings: Settings, starter: Starter) -> None:
    """Until it is told to end."""
    from carrel.daemon.assembling import open_api
    from carrel.daemon.listening import Server, bound

    ending = asyncio.Event()
    _on_signals(ending.set)
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS, "carrel"))
    async with (
        open_api(settings, ending.set) as (api, closing),
        bound(settings.data, settings.listen) as found,
    ):
        server = Server(api, closing)
        await server.open(found.sockets)
        # What is here now stays: there is no need to look through it again and again.
        gc.collect()
        gc.freeze()
        _log.info("serving %s %s", places.socket(settings.data), found.address)
        starter.ready(found.address)
        await ending.wait()
        _log.info("ending")
        starter.ending()
        await server.close()
    _log.info("ended")


def _on_signals(end: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, end)
