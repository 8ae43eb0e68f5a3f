"""The person's pager: where output is a terminal, long text is shown in it."""

from __future__ import annotations

import os

from carrel.cli.output import flush, is_terminal, put

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from types import TracebackType

DEFAULT = "less -FRX"
"""It ends by itself when the text fits, shows colours, and leaves the text on the screen."""
NONE = ("", "cat")
"""Values of PAGER that ask for none."""


class Closed(BaseException):
    """The person has left the pager: nobody reads on."""


class Pager:
    """`write` takes text that is safe for a terminal. It goes to `$PAGER`, or `less`; where
    there is none, or output is no terminal, to standard output. Who leaves the pager ends the
    context, silently."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._before: object = None

    def __enter__(self) -> Pager:
        command = _command() if is_terminal(1) else ""
        if not command:
            return self
        import signal
        import subprocess

        flush()
        env = {"LESS": "FRX", "LV": "-c", **os.environ}
        self._process = subprocess.Popen(command, shell=True, stdin=subprocess.PIPE, env=env)
        # Ctrl-C is for the pager, which has the terminal.
        self._before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        return self

    def write(self, text: str) -> None:
        if self._process is None:
            put(text)
            return
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(text.encode("utf-8", "backslashreplace"))
        except BrokenPipeError:
            raise Closed from None

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> bool:
        if self._process is None:
            return False
        import signal

        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            # It was left before the end.
            error = error or Closed()
        self._process.wait()
        signal.signal(signal.SIGINT, self._before)  # type: ignore[arg-type]
        return isinstance(error, Closed)


def _command() -> str:
    """Empty: none."""
    chosen = os.environ.get("PAGER")
    if chosen is not None:
        return "" if chosen.strip() in NONE else chosen
    from shutil import which

    return DEFAULT if which("less") else ""
