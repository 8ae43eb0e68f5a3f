"""What runs in the pane: starts the command that a file names, and writes down how it ended.

tmux takes commands of some kilobytes only, and loses now and then how a program ended. Standard
library only: it is run as `python -I -S pane.py COMMAND ENDED`.
"""

from __future__ import annotations

import json
import os
import signal
import sys

KEYS = (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP)
"""Meant for the program, which is in the same group."""
PASSED_ON = (signal.SIGTERM, signal.SIGHUP)


def main(command: str, ended: str) -> int:
    with open(command, encoding="utf-8") as text:
        argv = json.load(text)
    # Handlers are the program's no more; what is ignored would be.
    for key in KEYS:
        signal.signal(key, lambda *_: None)
    pid = os.fork()
    if pid == 0:
        become(argv)
    for number in PASSED_ON:
        signal.signal(number, lambda number, _: os.kill(pid, number))
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    with open(f"{ended}.new", "w") as file:
        file.write(str(code))
    os.rename(f"{ended}.new", ended)
    return code if code >= 0 else 128 - code


def become(argv: list[str]) -> None:
    # Programs that find themselves in tmux use it; this one is ours.
    env = {name: value for name, value in os.environ.items() if not name.startswith("TMUX")}
    try:
        os.execve(argv[0], argv, env)
    except OSError as error:
        print(f"carrel: {argv[0]} cannot be started: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(127)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
