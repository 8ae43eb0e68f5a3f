"""Starting a daemon as `carrel.daemon.control` does, except that its interpreter has begun."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection

import pytest

from carrel.daemon import control
from carrel.daemon.control import Folder
from tests.forking import forked
from tests.launchers import fork_launchers, nursery


def spawn(data: Folder, listen: str | None, ready: int) -> None:
    """In the place of the one that starts a new interpreter."""
    words = ["--data", os.path.abspath(data), "--detach"]
    if listen:
        words += ["--listen", listen]
    with Connection(os.dup(ready), readable=False) as heard:
        args = (words, dict(os.environ), heard, nursery())
        process = forked.Process(target=_become, args=args)
        process.start()
    process.join()
    process.close()


def _become(words: Sequence[str], env: dict[str, str], heard: Connection, nursery: str) -> None:
    from carrel.daemon.main import main

    fork_launchers(nursery)
    os.environ.clear()
    os.environ.update(env)
    raise SystemExit(main([*words, "--ready-fd", str(heard.fileno())]))


@contextlib.contextmanager
def forking() -> Iterator[None]:
    """Daemons that are started meanwhile, by this process, are forked."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(control, "_spawn", spawn)
        yield
