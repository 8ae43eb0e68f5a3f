"""What runs in the pane first: becomes the command that a file names.

tmux takes commands of some kilobytes only, and a prompt may be longer. Standard library only:
it is run as `python -I -S pane.py FILE`.
"""

from __future__ import annotations

import json
import os
import sys


def main(file: str) -> None:
    with open(file, encoding="utf-8") as text:
        argv = json.load(text)
    # Programs that find themselves in tmux use it; this one is ours.
    env = {name: value for name, value in os.environ.items() if not name.startswith("TMUX")}
    try:
        os.execve(argv[0], argv, env)
    except OSError as error:
        print(f"carrel: {argv[0]} cannot be started: {error.strerror}", file=sys.stderr)
        sys.exit(127)


if __name__ == "__main__":
    main(sys.argv[1])
