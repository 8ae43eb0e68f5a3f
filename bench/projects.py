"""Projects to measure with: as many files as wanted, with sizes and a history as real ones."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.measuring import say

GIT_S = 1200.0
"""For one git command; the longest takes a minute for 50,000 files on a slow disk."""
_COMMITS = 6
"""The first has all files; each later one changes a part of them."""
_CHANGED_SHARE = 0.02
_FILES_PER_FOLDER = 25
_FOLDERS_PER_FOLDER = 20
_SUFFIXES = ("py", "js", "ts", "md", "json", "go", "h", "css")
_SIGMA = 1.1
"""Of the logarithm of the sizes: most files of a project are small, some are large."""
_LARGEST = 40
"""Times the average."""
_POOL_WORDS = 200_000
_WHEN = 1_700_000_000
_ENV = {
    "PATH": os.environ.get("PATH", os.defpath),
    "HOME": "/nonexistent",
    "LC_ALL": "C",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
}


@dataclass(frozen=True)
class Shape:
    files: int
    average_bytes: int
    seed: int = 1


def git(*words: str, timeout_s: float = GIT_S) -> str:
    """With nobody's configuration. Raises RuntimeError with what git said."""
    done = subprocess.run(
        ["git", *words], env=_ENV, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"git {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def name_of(number: int) -> str:
    """Folders of 25 files, 20 of them in a folder above."""
    folder = number // _FILES_PER_FOLDER
    above, here = divmod(folder, _FOLDERS_PER_FOLDER)
    suffix = _SUFFIXES[number % len(_SUFFIXES)]
    return f"src/part{above:04d}/module{here:02d}/file{number:06d}.{suffix}"


def make_project(folder: Path, shape: Shape) -> None:
    """A checkout with a packed history, its index refreshed."""
    say(f"making a project of {shape.files:,} files")
    git("init", "--quiet", "--initial-branch=main", str(folder))
    importer = subprocess.Popen(
        ["git", "-C", str(folder), "fast-import", "--quiet", "--depth=0"],
        stdin=subprocess.PIPE,
        env=_ENV,
    )
    assert importer.stdin is not None
    with importer, importer.stdin as stream:
        for part in _history(shape):
            stream.write(part)
    if importer.returncode != 0:
        raise RuntimeError(f"git fast-import ended with {importer.returncode}")
    say("checking it out")
    git("-C", str(folder), "-c", "checkout.workers=4", "checkout", "--quiet", "main")
    git("-C", str(folder), "status")


def make_plain_folder(folder: Path, files: int) -> None:
    """Many small files and no repository."""
    say(f"making a folder of {files:,} files")
    made: set[str] = set()
    for number in range(files):
        name = folder / name_of(number)
        if (parent := str(name.parent)) not in made:
            os.makedirs(parent, exist_ok=True)
            made.add(parent)
        with open(name, "wb") as file:
            file.write(b"file %d\n" % number)


def change_files(project: Path, files: int, count: int, seed: int) -> list[str]:
    """Appends a line to some files here and there; gives their names."""
    chosen = random.Random(seed).sample(range(files), min(count, files))
    names = [name_of(number) for number in chosen]
    for name in names:
        with open(project / name, "ab") as file:
            file.write(b"changed %d\n" % seed)
    return names


def _history(shape: Shape) -> Iterator[bytes]:
    chance = random.Random(shape.seed)
    pool = _pool(chance)
    for commit in range(_COMMITS):
        message = b"commit %d" % commit
        yield b"commit refs/heads/main\n"
        yield b"committer Bench <bench@example.org> %d +0000\n" % (_WHEN + commit)
        yield b"data %d\n%s\n" % (len(message), message)
        for number in range(shape.files):
            if commit and chance.random() >= _CHANGED_SHARE:
                continue
            content = _content(chance, pool, shape.average_bytes, number, commit)
            yield b"M 100644 inline %s\n" % name_of(number).encode()
            yield b"data %d\n%s\n" % (len(content), content)


def _pool(chance: random.Random) -> bytes:
    """Text that compresses about as well as source does."""
    letters = "etaoinshrdlucmfwypvbgk"
    words = ["".join(chance.choices(letters, k=chance.randint(2, 9))) for _ in range(3000)]
    return " ".join(chance.choices(words, k=_POOL_WORDS)).replace(" e", "\n    e").encode()


def _content(chance: random.Random, pool: bytes, average: int, number: int, commit: int) -> bytes:
    wanted = int(chance.lognormvariate(0.0, _SIGMA) / 1.83 * average)  # e^(sigma²/2) = 1.83
    size = max(16, min(wanted, _LARGEST * average, len(pool) // 2))
    start = chance.randrange(len(pool) - size)
    return b"# %d %d\n" % (number, commit) + pool[start : start + size]
