"""A warm process: it has loaded a program's modules, and commands are forked from it.

Started by path, by the program's own interpreter, as a child of the launcher:

    PYTHON -I zygote.py --channel FD --package FOLDER --preload a,b --load FILE…

It says on the channel that it is ready, or what was wrong; then it forks for each socket that
it is sent, and answers with the child's number. It ends with its channel.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import sys
from types import ModuleType

OLDEST = (3, 11)
"""Of what the children run before they call anything of the program's."""


class Unfit(Exception):
    """Nothing can be forked from this process."""


def main(arguments: list[str]) -> None:
    options = _read(arguments)
    channel = socket.socket(fileno=int(options["channel"][0]))
    channel.set_inheritable(False)
    try:
        child = _prepare(options)
    except BaseException as error:
        text = str(error) if isinstance(error, Unfit) else f"{type(error).__name__}: {error}"
        channel.send(json.dumps({"step": "zygote", "errno": 0, "text": text[:2000]}).encode())
        sys.excepthook(type(error), error, error.__traceback__)
        # Not by the usual way, which waits for threads.
        os._exit(1)
    sys.stdout.flush()
    sys.stderr.flush()
    channel.send(b'{"ready":true}')
    child.become_forker(channel.detach(), os.fork)


def _read(arguments: list[str]) -> dict[str, list[str]]:
    """By hand: what is imported here is in every child."""
    names, values = arguments[::2], arguments[1::2]
    options: dict[str, list[str]] = {}
    for name, value in zip(names, values):  # noqa: B905
        options.setdefault(name[2:], []).append(value)
    return options


def _prepare(options: dict[str, list[str]]) -> ModuleType:
    if sys.version_info < OLDEST:
        found = ".".join(map(str, sys.version_info[:2]))
        raise Unfit(f"its interpreter is Python {found}, and 3.11 is needed")
    sys.path.insert(0, options["package"][0])
    from carrel.launcher import calls, child
    from carrel.linux import namespaces

    del sys.path[0]
    namespaces.set_dumpable(False)
    # The program may have modules of the same names, or be Carrel of another version.
    for name in [name for name in sys.modules if name.split(".")[0] == "carrel"]:
        del sys.modules[name]
    # The first is the folder of this file.
    sys.path[:] = [path for path in sys.path if path != os.path.dirname(__file__)]
    for name in filter(None, ",".join(options.get("preload", [])).split(",")):
        __import__(name)
    for path in options.get("load", []):
        calls.load(path)
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        raise Unfit(f"what it loaded has started {threads - 1} threads")
    gc.collect()
    gc.freeze()
    return child


if __name__ == "__main__":
    main(sys.argv[1:])
