"""Becoming a function instead of a program: for a forked child that has entered its sandbox.

It is as if a fresh interpreter had been started for it, but for the modules, which are loaded
already. Only the standard library, and of that little: in a sandbox its files may be missing.
"""

from __future__ import annotations

import atexit
import io
import os
import signal
import sys
from collections.abc import Callable, Mapping
from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import Any, NoReturn

Function = Callable[[Any], object]

_loaded: dict[str, ModuleType] = {}


def load(path: str) -> ModuleType:
    """The module in that file, once; it is found whatever later is at that path. What was
    compiled of it when it was installed is used: a gate takes milliseconds to compile."""
    module = _loaded.get(path)
    if module is None:
        name = os.path.basename(path).removesuffix(".py")
        module = ModuleType(f"called_{name}")
        module.__file__ = path
        code = SourceFileLoader(module.__name__, path).get_code(module.__name__)
        assert code is not None
        sys.modules[module.__name__] = module
        exec(code, module.__dict__)
        _loaded[path] = module
    return module


def find(call: Mapping[str, Any]) -> Function:
    """Raises what loading its file raises, and AttributeError."""
    function: Function = getattr(load(call["file"]), call["function"])
    return function


def become(function: Function, argument: Any, words: list[str], env: dict[str, str]) -> NoReturn:
    """Calls it, and ends with what it returns, as `sys.exit` would."""
    os.environ.clear()
    os.environ.update(env)
    sys.argv = words
    # Whoever starts an interpreter for the same program looks here for what to load.
    sys.modules["__main__"] = ModuleType("__main__")
    _renew_streams()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        # As an interpreter has it; a program that it executes gets the default.
        signal.signal(number, signal.SIG_IGN)
    code = _call(function, argument)
    _tidy_up()
    os._exit(code & 0xFF)


def _renew_streams() -> None:
    """The ones there are belong to the process that was forked."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        raw = io.FileIO(number, "w" if number else "r", closefd=False)
        stream = io.TextIOWrapper(
            io.BufferedWriter(raw) if number else io.BufferedReader(raw),
            encoding="utf-8",
            errors="backslashreplace" if number == 2 else "surrogateescape",
            line_buffering=number == 2 or os.isatty(number),
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _call(function: Function, argument: Any) -> int:
    try:
        result = function(argument)
    except SystemExit as ended:
        result = ended.code
        if result is not None and not isinstance(result, int):
            sys.stderr.write(f"{result}\n")
            return 1
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
        return 130
    except BaseException as error:
        # Without the frames that led to the call.
        trace = error.__traceback__.tb_next if error.__traceback__ is not None else None
        sys.excepthook(type(error), error, trace)
        return 1
    return result if isinstance(result, int) else 0


def _tidy_up() -> None:
    """What an interpreter does at its end. Whatever goes wrong in it stands on stderr."""
    threading = sys.modules.get("threading")
    try:
        if threading is not None:
            threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
