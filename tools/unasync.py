"""Writes the sync client from the async one, which is the source.

python tools/unasync.py            writes
python tools/unasync.py --check    says what is stale, and ends with 1 then
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

CLIENT = Path(__file__).resolve().parent.parent / "src" / "carrel" / "client"
MADE = {
    "aio.py": "sync.py",
    "aio_spaces.py": "spaces.py",
    "aio_instances.py": "instances.py",
    "aio_requests.py": "requests.py",
    "aio_events.py": "events.py",
    "aio_images.py": "images.py",
}
WORDS = (
    # What the sync client has alone.
    (r"(?m)^    # sync:(.*)$", r"\1"),
    (r"\basyncio\.sleep\b", "time.sleep"),
    (r"(?m)^import asyncio\n", ""),
    (r"\basync (with|for|def)\b", r"\1"),
    (r"\bawait ", ""),
    (r"__a(enter|exit|iter|next)__", r"__\1__"),
    (r"\basync(contextmanager)\b", r"\1"),
    (r"\bAsyncGenerator\[([^\[\]]+), None\]", r"Generator[\1, None, None]"),
    (r"\bAsync([A-Z]\w*)", r"\1"),
    (r"\bcarrel\.client\.aio_(\w+)", r"carrel.client.\1"),
    (r"\ba(closing|iter|next)\(", r"\1("),
    # `(await x).y` has become `(x).y`.
    (r"(?<![\w)\]])\((self\.[\w.]+\([^()]*(?:\([^()]*\))?[^()]*\))\)\.", r"\1."),
)


def sync(name: str) -> str:
    text = (CLIENT / name).read_text()
    for pattern, word in WORDS:
        text = re.sub(pattern, word, text)
    note = f"# Made from {name} by tools/unasync.py: change that one.\n"
    return _tidied(note + text)


def _tidied(text: str) -> str:
    ruff = [str(Path(sys.executable).with_name("ruff"))]
    named = ["--stdin-filename", str(CLIENT / "made.py"), "-"]
    sort = [*ruff, "check", "--quiet", "--select", "I,UP028", "--fix", "--unsafe-fixes", *named]
    for words in (sort, [*ruff, "format", "--quiet", *named]):
        text = subprocess.run(words, input=text, stdout=-1, text=True, check=True).stdout
    return text


def main(words: list[str]) -> int:
    stale = [made for name, made in MADE.items() if (CLIENT / made).read_text() != sync(name)]
    if words != ["--check"]:
        for name, made in MADE.items():
            (CLIENT / made).write_text(sync(name))
        return 0
    for made in stale:
        print(f"{made} is stale: python tools/unasync.py")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
