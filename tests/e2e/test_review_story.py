"""The whole story of a review on a real project, as a person plays it with the program: two agents
race, one's work is commented on and mended, both land in line and conflict, and the last landing is
taken back. One of them is the real Claude Code, on a stand-in for its model.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.accounts import SOURCE
from tests.agents.installed import require_programs
from tests.agents.standins import Standin, serving
from tests.cli.program import TIMEOUT_S, Program
from tests.conformance.desks import LOOK_S, equipped

SDISTS = SOURCE / "tools/projects/sdists"
PARSER = "src/tomli/_parser.py"
CHECK = "PYTHONPATH=src python3 -m unittest discover -s tests"
TASK = """\
Say more clearly in the error of `load` how a file has to be opened.
RUN sed -i 's/File must be opened in/The file must be opened in/' src/tomli/_parser.py
RUN git commit -qam 'A clearer error'
run sed -i 's/File must be opened in/This file has to be read in/' src/tomli/_parser.py
run mkdir tests
write tests/test_errors.py import io, tomli, unittest
append tests/test_errors.py class Errors(unittest.TestCase):
append tests/test_errors.py     def test_text(self):
append tests/test_errors.py         with self.assertRaisesRegex(TypeError, "binary mode.*'rb'"):
append tests/test_errors.py             tomli.load(io.StringIO("a = 1"))
"""
"""Claude Code's model does what is in capitals, the scripted agent the rest."""
COMMENT = """\
Say `open for reading`: it is not written to.
RUN sed -i 's/must be opened in binary/must be opened for reading in binary/' src/tomli/_parser.py
"""
CONFLICT = "the project has changed in the same places"
MERGE = f"RUN sed -i -e '/^<<<<<<< /,/^=======$/d' -e '/^>>>>>>> /d' {PARSER}"
"""It leaves what is its own."""
CLAUDE, SCRIPTED = "try-claude-code", "try-scripted"


@pytest.fixture
def standin() -> Iterator[Standin]:
    require_programs()
    with serving() as found:
        yield found


@pytest.fixture
def carrel(data: Path, tmp_path: Path) -> Iterator[Program]:
    with equipped(data) as daemon:
        yield Program(daemon.data, tmp_path)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """As its authors gave it out, made a repository."""
    found = sorted(SDISTS.glob("tomli-*.tar.gz"))
    if not found:
        pytest.skip("not fetched, as `make setup` said (pip, network): the source of tomli")
    unpack = ("tar", "xzf", found[0], "-C", tmp_path, "--no-same-owner")
    subprocess.run(unpack, check=True, timeout=TIMEOUT_S)
    folder = next(tmp_path.glob("tomli-*"))
    (folder / ".gitignore").write_text("__pycache__/\n")
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "The release")
    return folder


def git(folder: Path, *words: str) -> str:
    own = ("git", "-c", "user.name=Ada", "-c", "user.email=ada@example.org", *words)
    done = subprocess.run(own, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def until_idle(carrel: Program, name: str) -> dict[str, Any]:
    """Its newest turn, which has gone well."""
    until = time.monotonic() + TIMEOUT_S
    while carrel.json("show", name)["working"]:
        assert time.monotonic() < until
        time.sleep(LOOK_S)
    turn: dict[str, Any] = carrel.json("turns", name)["turns"][0]
    assert turn["state"] == "complete", turn
    return turn


def until_landed(carrel: Program, *names: str) -> dict[str, dict[str, Any]]:
    """What became of those that are put in line."""
    words = ("--queue", "--into", "main", "--check", CHECK)
    mine = [one["id"] for one in carrel.json("land", *names, *words)["entries"]]
    until = time.monotonic() + TIMEOUT_S
    while True:
        known = [one for one in carrel.json("queue")["entries"] if one["id"] in mine]
        if all(one["ended_at"] for one in known):
            return {one["name"]: one for one in known}
        assert time.monotonic() < until, known
        time.sleep(LOOK_S)


def race(carrel: Program, project: Path, standin: Standin) -> None:
    """The test that one of them wrote is taken to the other."""
    env = ("--env", f"ANTHROPIC_BASE_URL={standin.url}", "--env", "ANTHROPIC_API_KEY=sk")
    agents = ("--agents", "claude-code,scripted", "--name", "try")
    done = carrel("race", str(project), "-m", TASK, *agents, "--check", CHECK, *env)
    assert done.code == 0, done
    rows = {row.split()[0]: row.split()[1:6] for row in done.out.splitlines()[1:]}
    assert rows == {
        CLAUDE: ["claude-code", "complete", "failed", "1", "+1"],
        SCRIPTED: ["scripted", "complete", "passed", "2", "+6"],
    }
    taken = carrel.good("take", SCRIPTED, "tests", "--into", CLAUDE)
    assert taken == "A tests/test_errors.py\n"
    assert "OK" in carrel("exec", CLAUDE, "--", "sh", "-c", CHECK).err
    assert carrel.good("diff", CLAUDE, SCRIPTED, "--name-only") == f"{PARSER}\n"


def comment(carrel: Program) -> None:
    """The agent mends it in the same conversation."""
    assert '+            "The file must be opened in binary' in carrel.good("diff", CLAUDE, PARSER)
    found = carrel.good("exec", CLAUDE, "--", "grep", "-n", "must be opened", PARSER)
    carrel.good("comment", CLAUDE, f"{PARSER}:{found.partition(':')[0]}", COMMENT)
    assert "must be opened in binary" in carrel.good("comments", CLAUDE)
    carrel.good("comments", CLAUDE, "--send")
    assert until_idle(carrel, CLAUDE)["result"]["final_output"].startswith("reply 2: ")
    assert "must be opened for reading in" in carrel.good("diff", CLAUDE, PARSER)
    assert "no open comments" in carrel("comments", CLAUDE).err


def conflict(carrel: Program, project: Path, standin: Standin) -> None:
    """One lands, the other comes back; its agent merges both."""
    ended = until_landed(carrel, SCRIPTED, CLAUDE)
    assert [ended[name]["state"] for name in (SCRIPTED, CLAUDE)] == ["landed", "returned"], ended
    assert ended[CLAUDE]["code"] == "landing_conflict"
    assert "This file has to be read in" in (project / PARSER).read_text()
    standin.knows[CONFLICT] = MERGE
    refused = carrel("land", CLAUDE, "--into", "main", "--resolve")
    assert refused.code == 4 and "The agent merges it in its turn" in refused.err
    assert until_idle(carrel, CLAUDE)["result"]["final_output"].startswith("reply 3: ")
    assert "<<<<" not in carrel.good("exec", CLAUDE, "--", "cat", PARSER)


def test_the_story(carrel: Program, project: Path, standin: Standin) -> None:
    (project / "notes.txt").write_text("mine\n")
    race(carrel, project, standin)
    comment(carrel)
    conflict(carrel, project, standin)
    first = git(project, "rev-parse", "main")
    both = (project / PARSER).read_text()
    assert until_landed(carrel, CLAUDE)[CLAUDE]["state"] == "landed"
    merged = both.replace("This file has to be read", "The file must be opened for reading")
    assert (project / PARSER).read_text() == merged != both
    assert git(project, "rev-parse", "main^") == first
    assert git(project, "status", "--porcelain") == "?? notes.txt"
    tested = subprocess.run(CHECK, cwd=project, shell=True, capture_output=True, timeout=TIMEOUT_S)
    assert tested.returncode == 0, tested
    # And back.
    assert "The branch main was moved back" in carrel("undo").err
    assert git(project, "rev-parse", "main") == first and (project / PARSER).read_text() == both
    listed = [row.split()[2:6] for row in carrel.good("undo", "--list").splitlines()[1:]]
    assert [CLAUDE, "main", "1", "undone"] in listed and [SCRIPTED, "main", "2", "landed"] in listed
    assert git(project, "status", "--porcelain") == "?? notes.txt"
    git(project, "fsck", "--strict")
    carrel.good("rm", "--force", CLAUDE, SCRIPTED)
