"""Records a terminal session with Carrel as a picture: docs/session.svg.

    .venv/bin/python tools/record_session.py [FILE]

Each line of `SESSION` is typed into a shell on a terminal of its own, on a small project and
with a daemon of its own; nothing is left behind. What the commands print is what they print.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import pty
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

from rich.console import Console
from rich.text import Text

from carrel.daemon import control

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "session.svg"
COLUMNS, ROWS = 90, 60
LINE_S = 120.0
"""For one line; the first starts the daemon."""
SESSION = """\
carrel new . --name poems --agent scripted -m 'write haiku.txt An old desk' --wait
carrel new . --name tests --agent scripted -m 'run sed -i s/Hello/Hi/ greet.py' --wait
carrel ls
carrel changes poems
carrel exec tests -- cat greet.py
carrel cp poems:haiku.txt .
carrel rm poems && carrel rm --force tests
"""
FRAME = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font: {char_height}px ui-monospace, Menlo, Consolas, monospace;
line-height: {line_height}px; font-variant-east-asian: full-width; }}
.{unique_id}-title {{ font: bold 15px sans-serif; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g></g>
</svg>
"""
"""As Rich draws it, without the fonts that it would fetch."""


def run(line: str, project: Path, env: dict[str, str]) -> str:
    """What a terminal shows of one line."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    shown = bytearray()
    with subprocess.Popen(
        ["sh", "-c", line],
        cwd=project,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    ) as shell:
        os.close(theirs)
        with contextlib.ExitStack() as opened:
            opened.callback(os.close, ours)
            try:
                while piece := os.read(ours, 65536):
                    shown += piece
            except OSError as error:
                # So the kernel says that nobody has the other end any more.
                if error.errno != errno.EIO:
                    raise
        if shell.wait(LINE_S):
            raise SystemExit(f"{line}\n{shown.decode(errors='replace')}")
    # A line that was written over is shown as it was left.
    lines = shown.decode().replace("\r\n", "\n").split("\n")
    return "\n".join(one.rpartition("\r")[2] for one in lines)


def record(picture: Path) -> None:
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    with tempfile.TemporaryDirectory(prefix="carrel-session-") as folder:
        project, data = Path(folder, "greeter"), Path(folder, "data")
        project.mkdir()
        os.chmod(folder, 0o711)
        (project / "greet.py").write_text('print("Hello")\n')
        subprocess.run(["git", "init", "-q"], cwd=project, check=True)
        programs = str(Path(sys.executable).parent)
        env = {**os.environ, "CARREL_DATA": str(data), "TERM": "xterm-256color"}
        env |= {"PATH": f"{programs}:{env['PATH']}", "COLUMNS": str(COLUMNS)}
        try:
            for line in SESSION.splitlines():
                console.print(Text("$ ", "bold green") + Text(line, "bold"))
                if found := run(line, project, env).rstrip("\n"):
                    console.print(Text.from_ansi(found))
        finally:
            control.stop(data)
    picture.write_text(console.export_svg(title="carrel", code_format=FRAME, unique_id="session"))


if __name__ == "__main__":
    record(Path(sys.argv[1]) if sys.argv[1:] else PICTURE)
