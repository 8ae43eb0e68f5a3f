"""Functions that tests have called in forks of a warm process."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

LOADED_AS = os.getpid()


def echo(argument: Any) -> int:
    """What a fork finds: as a fresh program would."""
    print(argument["say"], sys.argv, os.getcwd(), os.environ.get("WHO"), os.getpid())
    print("to stderr", file=sys.stderr)
    return int(argument.get("code", 0))


def state(_argument: Any) -> None:
    """Of what forking could have broken."""
    import asyncio
    import logging
    import random
    import subprocess
    import tempfile

    logging.warning("logged")
    said = subprocess.run(["echo", "child"], capture_output=True, text=True, check=True)
    with tempfile.NamedTemporaryFile() as file:
        made = os.path.exists(file.name)

    async def work() -> str:
        process = await asyncio.create_subprocess_exec("true")
        return f"{await process.wait()} {await asyncio.to_thread(threading.get_ident) != 0}"

    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(threading.get_native_id()))
    thread.start()
    thread.join()
    print(said.stdout.strip(), made, asyncio.run(work()), found[0] > 0, random.random())
    main = threading.main_thread()
    same = threading.get_native_id() == os.getpid() != LOADED_AS
    print(main is threading.current_thread(), same)


def fail(_argument: Any) -> None:
    raise ValueError("on purpose")


def leave(_argument: Any) -> None:
    """A thread that is waited for, and what is to be done at the end."""
    import atexit
    import time

    def wait() -> None:
        time.sleep(0.05)
        print("thread")

    atexit.register(print, "at exit")
    threading.Thread(target=wait).start()
    sys.exit(3)


def rest(_argument: Any) -> None:
    """Until it is killed, with a child in a session of its own."""
    import subprocess

    subprocess.Popen(["setsid", "sleep", "60"])
    print("resting", flush=True)
    threading.Event().wait()


def accept(_argument: Any) -> None:
    import socket

    listener = socket.socket(fileno=3)
    connection, _ = listener.accept()
    connection.sendall(repr(sorted(map(int, os.listdir("/proc/self/fd")))).encode())
    connection.close()


def spawn(_argument: Any) -> None:
    """Processes that load the program anew."""
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    child = context.Process(target=print, args=("spawned",))
    child.start()
    child.join(30)
    print(child.exitcode)


def program(_argument: Any) -> None:
    """Whether it leads to a file that can be written."""
    for flags in (os.O_WRONLY, os.O_RDWR):
        try:
            os.close(os.open("/proc/self/exe", flags))
            print("written")
        except OSError as error:
            print(type(error).__name__, os.readlink("/proc/self/exe").split(":")[0])


def private(_argument: Any) -> None:
    with open("/proc/self/smaps_rollup") as file:
        found = dict(line.split(":") for line in list(file)[1:])
    kib = sum(int(found[key].split()[0]) for key in ("Private_Clean", "Private_Dirty"))
    print(kib)


if __name__ == "__main__":
    for name in sys.argv[1].split(","):
        __import__(name)
    private(None)
