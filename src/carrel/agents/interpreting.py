"""Our own programs inside sandboxes: the interpreter, and what it must be shown.

It starts without the environment's say (`-I`), so what only this process knows is said to it
again: where this package is, and the other packages if they are somewhere else.
"""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path

import carrel

_PACKAGES = ("site-packages", "dist-packages")
_RUN = """\
import importlib.util, runpy, sys
sys.path[:0] = {paths!r}
spec = importlib.util.spec_from_file_location("carrel", {folder!r} + "/__init__.py")
sys.modules["carrel"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["carrel"])
runpy.run_module({module!r}, None, "__main__")
"""
"""By its file: the folder above may be anybody's, and is not shown."""


def python(module: str, *words: str) -> tuple[str, ...]:
    """The command that runs a module of ours."""
    folder = Path(carrel.__file__).parent
    paths = [path for path in _own_paths() if os.path.basename(path) in _PACKAGES]
    if folder.parent.name in _PACKAGES and not paths:
        return (sys.executable, "-I", "-m", module, *words)
    run = _RUN.format(paths=paths, folder=str(folder), module=module)
    return (sys.executable, "-I", "-c", run, *words)


@functools.cache
def _own_paths() -> tuple[str, ...]:
    """Of this process, beside those that the interpreter has by itself."""
    own = [path for path in sys.path if path and os.path.isdir(path)]
    found = [path for path in own if not _below(path, (sys.prefix, sys.base_prefix, "/usr"))]
    return tuple(dict.fromkeys(os.path.abspath(path) for path in found))


def folders() -> tuple[str, ...]:
    """The interpreter, its packages and this one, without what every sandbox shows."""
    wanted = [
        sys.prefix,
        sys.base_prefix,
        str(Path(carrel.__file__).parent),
        os.path.realpath(sys.executable),
        *(path for path in _own_paths() if os.path.basename(path) in _PACKAGES),
    ]
    shown: list[str] = ["/usr"]
    for path in wanted:
        if not _below(path, tuple(shown)):
            shown.append(path)
    return tuple(shown[1:])


def _below(path: str, folders: tuple[str, ...]) -> bool:
    return any(Path(path).is_relative_to(folder) for folder in folders)
