"""The benchmarks run, in small, and tell what they promise to tell. Times are not looked at."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bench.agent_streams import faults
from bench.containers import write_image
from bench.hub_crews import WorkerFailed, do
from bench.hub_jobs import Job
from bench.hub_rivals import Unavailable, find_redis, open_redis
from bench.measuring import UNSETTLED, Board, quantile
from bench.places import mounts_below
from carrel.domain.errors import SshUnavailable
from carrel.ssh.keys import find_server
from tests.agents.installed import require_programs
from tests.instances.installed import require
from tests.sampling import EXHAUSTIVE, every, whole_only

BENCH = Path(__file__).resolve().parent.parent / "bench"
RUN_S = 100.0
"""Each takes a few seconds; two of them share two cores with other tests."""
TREES = ("trees.py", "--files=60", "--bytes=500", "--trees=6", "--sizes=10,40", "--repeats=2")
SANDBOX = ("sandbox.py", "--at-once=2", "--busy=0.1", "--no-containers")
SPACES = (
    *(
        "spaces.py",
        "--files=40",
        "--bytes=300",
        "--count=3",
        "--burst=4",
        "--few=2",
        "--live=5",
        "--small=20",
    ),
    *("--repeats=2", "--output=3000000", "--no-containers"),
)
HUB = (
    *("hub.py", "--messages=320", "--window=10", "--rate=50", "--seconds=1", "--subscribers=4"),
    *("--kept=300", "--missed=100", "--idle=10", "--clients=4", "--processes=1"),
    "--no-rehearsal",
)

AGENTS = (
    *("agents.py", "--files=40", "--bytes=300", "--agents=3", "--events=20", "--wide=2"),
    "--no-rehearsal",
)

INSTANCES = (
    *("instances.py", "--at-once=2", "--many=everything", "--live=1", "--no-rehearsal"),
    *(() if EXHAUSTIVE else ("--servers=everything,filesystem",)),
)
"""To start Serena takes seconds, seven times."""


IMPATIENT = """
import sys
if "carrel.daemon" in sys.orig_argv:
    from carrel.runtimes import engine
    engine.LINGER_S = 0.2
"""
"""A daemon reads it first: sandboxes in which nothing runs are kept for ten seconds, and the
benchmark waits, twice, until none is."""

REQUESTS = (
    *("requests.py", "--count=1", "--files=10", "--connections=2", "--each=1", "--greedy=2"),
    *("--others=1", "--many=2", "--idle-s=1", "--no-rehearsal"),
)


def arguments(place: Path, script: str, *options: str) -> list[str]:
    common = ["--rounds=1", "--json", f"--folder={place}"]
    return [sys.executable, str(BENCH / script), *options, *common]


SSH = ("ssh.py", "--megabytes=1", "--many=2")


def report_of(
    place: Path, script: str, *options: str, env: Mapping[str, str] | None = None
) -> dict[str, Any]:
    done = subprocess.run(
        arguments(place, script, *options),
        env={**os.environ, UNSETTLED: "1", **(env or {})},
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert list(place.iterdir()) == []
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def check_shape(report: dict[str, Any]) -> None:
    assert report.keys() == {
        "benchmark",
        "options",
        "machine",
        "rows",
        "ratios",
        "targets",
        "skipped",
    }
    for row in (*report["rows"], *report["ratios"], *report["targets"]):
        assert row["p10"] <= row["median"] <= row["p90"]
        assert row["count"] >= 1
        assert row["name"] and row["unit"]
    for target in report["targets"]:
        value, limit = target["median"], target["limit"]
        assert target["met"] == (value >= limit if target["at_least"] else value <= limit)
    for skipped in report["skipped"]:
        assert skipped["name"] and skipped["why"]


def names(report: dict[str, Any], part: str) -> set[str]:
    return {row["name"] for row in report[part]}


def test_ssh(data: Path) -> None:
    try:
        find_server()
    except SshUnavailable as error:
        pytest.skip(f"{error.message} {error.hint}")
    report = report_of(data, *SSH)
    check_shape(report)
    assert len(names(report, "rows")) == 12
    assert {"connections at once", "idle"} < names(report, "targets")


def test_trees(data: Path) -> None:
    report = report_of(data, *TREES)
    check_shape(report)
    assert report["benchmark"] == "trees"
    assert names(report, "rows") >= {
        "carrel: tree from a ready base",
        "carrel: drop",
        "carrel: second base, 10 files changed",
        "git worktree add",
        "git worktree remove --force",
        "git clone --local",
        "cp -a",
        "git status, warm checkout",
        "git status, first in a fresh tree",
    }
    assert names(report, "targets") >= {
        "tree: faster than git worktree add",
        "drop: faster than git worktree remove",
        "second base: faster than cp -a",
        "git status: in a fresh tree",
        "tree: from 10 to 40 files",
        "tree: from the 1st to number 6",
        "tree: disk",
    }
    if os.geteuid() == 0:
        assert "tree: own time beyond the mount" in names(report, "targets")


@whole_only
def test_sandbox(data: Path) -> None:
    report = report_of(data, *SANDBOX)
    check_shape(report)
    assert report["benchmark"] == "sandbox"
    for runtime in ("bubblewrap", "landlock", "process"):
        for what in ("first command", "start and first command", "further command"):
            assert f"carrel {runtime}: {what}" in names(report, "rows")
    assert "raw bwrap, the same namespaces" in names(report, "rows")
    assert len(report["targets"]) == 4


@whole_only
def test_spaces(data: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(IMPATIENT)
    report = report_of(data, *SPACES, env={"PYTHONPATH": str(tmp_path)})
    check_shape(report)
    assert report["benchmark"] == "spaces"
    assert names(report, "rows") >= {
        "carrel: time to interactive",
        "carrel: time to interactive, p50",
        "carrel: time to interactive, p99",
        "carrel: remove",
        "git worktree add + bwrap",
        "a large file, carrel exec to /dev/null",
        "a large file, carrel exec to a pipe",
        "carrel: 4 spaces at once",
        "carrel: new, 5 spaces",
        "restart after SIGKILL: until all spaces are listed",
        "daemon's memory, 5 spaces",
        "python -c pass",
    }
    assert names(report, "targets") >= {
        "time to interactive, p50",
        "time to interactive, p99",
        "burst: spaces with their command run",
        "memory of the daemon, 5 spaces",
        "memory for each further space",
        "processes of an idle space",
        "restart, 5 spaces",
        "carrel ls / python -c pass",
        *(f"{verb}: 5 spaces / 2 spaces" for verb in ("ls", "show", "new", "rm")),
    }
    # Every byte came, whatever it took.
    assert not any("a large file" in name for name in names(report, "skipped"))
    idle = next(row for row in report["targets"] if row["name"] == "processes of an idle space")
    assert idle["met"]


@whole_only
def test_hub(data: Path) -> None:
    report = report_of(data, *HUB)
    check_shape(report)
    assert report["benchmark"] == "hub"
    assert names(report, "rows") >= {
        "carrel: publish (disk)",
        "carrel: publish (process)",
        "carrel: publish, each awaited (disk)",
        "carrel: publish to receive, p99",
        "carrel: replay into one client",
        "carrel: reconnect, until all that was missed is there",
        "daemon's memory, with 10 idle clients",
    }
    assert names(report, "targets") >= {
        "durable publish",
        "publish to receive, 4 subscribers, p99",
        "replay into one client",
        "reconnect, 100 messages missed",
        "memory for 10 idle clients",
        "a message: 10 idle clients / none",
    }
    if find_redis() is None:
        assert names(report, "skipped") == {"redis"}
    else:
        assert names(report, "rows") >= {
            "redis: XADD (disk)",
            "redis.asyncio: XADD (process)",
            "redis: XADD to XREAD BLOCK, p99",
            "redis: XREAD from the first",
        }
        assert "durable publish: as fast as redis" in names(report, "targets")


@whole_only
def test_agents(data: Path) -> None:
    require_programs()
    report = report_of(data, *AGENTS)
    check_shape(report)
    assert report["benchmark"] == "agents" and names(report, "skipped") == set()
    assert names(report, "rows") >= {
        "carrel: a turn of claude-code",
        "claude-code itself, in the same sandbox",
        "carrel: events of scripted agents at once",
        "create and first reply, scripted, 2 at once",
        "create and first reply, claude-code, 1 at once",
    }
    (wrong,) = [one for one in report["targets"] if one["name"].startswith("events lost")]
    assert wrong["met"]


@whole_only
def test_instances(data: Path) -> None:
    for name in ("everything", "filesystem", "serena", "supergateway"):
        require(name)
    report = report_of(data, *INSTANCES)
    check_shape(report)
    assert report["benchmark"] == "instances" and names(report, "skipped") == set()
    assert names(report, "rows") >= {
        "raw: supergateway",
        "carrel: filesystem over HTTP, until its client's own handshake",
        "carrel: everything, cold",
        "carrel: everything, release to all gone",
        "carrel: 2 of everything at once: the last",
        "raw: 2 of everything at once: the last",
        "a gate's own memory",
    }
    assert names(report, "targets") >= {
        *(f"{name}: cold / raw" for name in ("everything", "filesystem on streams")),
        "starting at the same time",
        "the manager's memory for each",
        "everything: release to all gone, p95",
    }
    if EXHAUSTIVE:
        check_serena(report)


def check_serena(report: dict[str, Any]) -> None:
    assert names(report, "rows") >= {
        "raw: serena",
        "carrel: serena, cold",
        "carrel: serena, forked, a project that is new",
        "carrel: serena, pre-started, a project of lately",
        "carrel: serena, release to all gone",
        "own memory of serena, forked, after a tool call",
    }
    assert names(report, "targets") >= {
        "serena: cold / raw",
        "serena, pre-started",
        "serena's own memory after a tool call: forked / cold",
    }


@whole_only
def test_requests(data: Path) -> None:
    report = report_of(data, *REQUESTS)
    check_shape(report)
    assert report["benchmark"] == "requests" and names(report, "skipped") == set()
    assert names(report, "rows") >= {
        *(f"carrel: beyond the agent's time, {kind}" for kind in ("nothing", "a git project")),
        *(f"by hand: beyond the agent's time, {kind}" for kind in ("nothing", "a git project")),
        "carrel: 2 requests at once",
        "carrel: requests in a row",
        "daemon's memory, after 2 more",
    }
    # Whatever the machine does meanwhile: nothing is lost, mixed or left.
    met = {one["name"]: one["met"] for one in report["targets"]}
    assert met["requests lost"] and met["results with files that are not their own"]
    assert all(met[f"{what} that 2 requests leave"] for what in ("files", "mounts", "rows"))
    assert {"overhead, nothing, p50", "overhead, a git project, p95"} <= met.keys()
    assert {"idle carrel codesmith", "its memory after a call"} <= met.keys()


def test_review(data: Path) -> None:
    small = ("--files=60", "--bytes=300", "--changed=5", "--landings=2", "--repeats=1")
    report = report_of(data, "review.py", *small)
    check_shape(report)
    assert {"carrel: diff", "git diff, in the checkout"} <= names(report, "rows")
    assert names(report, "targets") == {"diff, processor time", "the queue"}


def test_checkpoints(data: Path) -> None:
    small = ("--files=60", "--bytes=300", "--changed=5", "--sizes=20,60", "--repeats=1")
    report = report_of(data, "checkpoints.py", *small)
    check_shape(report)
    assert {"git stash", "size of a fork", "what forks of a state share"} <= names(report, "rows")
    assert "fork, 60 files, processor time / 20" in names(report, "targets")


@pytest.mark.parametrize(
    ("found", "wrong"),
    [([1, 2, 3, 4], 0), ([1, 2, 4], 1), ([1, 2, 2, 3, 4], 1), ([1, 3, 2, 4], 1), ([], 4)],
)
def test_events_that_are_lost_or_misplaced_are_counted(found: list[int], wrong: int) -> None:
    assert faults(found, [1, 2, 3, 4]) == wrong


def test_without_redis_it_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="not installed"), open_redis(tmp_path / "redis"):
        pass


def test_a_process_that_fails_says_why(tmp_path: Path) -> None:
    job = Job("carrel", "idle", str(tmp_path / "no hub"), ("",))
    with pytest.raises(WorkerFailed, match="no hub"):
        do([job])


@pytest.mark.parametrize(
    ("number", "benchmark"),
    every(
        2,
        [
            (signal.SIGINT, SPACES),
            (signal.SIGINT, TREES),
            (signal.SIGTERM, SANDBOX),
            (signal.SIGINT, HUB),
        ],
    ),
)
def test_interrupted_leaves_nothing(data: Path, number: int, benchmark: tuple[str, ...]) -> None:
    env = {**os.environ, UNSETTLED: "1"}
    argv = arguments(data, *benchmark)
    running = subprocess.Popen(argv, env=env, stderr=subprocess.PIPE, text=True)
    with running:
        try:
            assert running.stderr is not None
            for line in running.stderr:
                if "round 1 of 1" in line:
                    running.send_signal(number)
                    break
            said = running.stderr.read()
            assert running.wait(RUN_S) == 130, said
        finally:
            running.kill()
    assert mounts_below(data) == []
    assert list(data.iterdir()) == []
    assert processes_in(data) == []


def processes_in(folder: Path) -> list[str]:
    """Whose working folder is (or was) in it, as the launcher's is."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.readlink(process / "cwd").startswith(str(folder)):
                found.append((process / "cmdline").read_text())
    return found


def test_an_image_has_its_programs_and_their_loader(tmp_path: Path) -> None:
    write_image(tmp_path / "image.tar", ("echo",))
    with tarfile.open(tmp_path / "image.tar") as tar:
        found = tar.getnames()
    assert "bin/echo" in found
    assert any("ld-" in name for name in found)


def test_ratios_are_taken_within_rounds() -> None:
    board = Board()
    for number, load in enumerate((1.0, 10.0, 100.0)):
        board.add("slow", number, 8.0 * load)
        board.add("quick", number, 2.0 * load)
    ratio = board.ratio("slow", "quick")
    assert (ratio.median, ratio.p10, ratio.p90, ratio.count) == (4.0, 4.0, 4.0, 3)
    assert board.difference("slow", "quick").median == 60.0


def test_quantiles_lie_between_values() -> None:
    assert quantile([3.0], 0.9) == 3.0
    assert quantile([4.0, 0.0, 2.0], 0.5) == 2.0
    assert quantile([0.0, 10.0], 0.1) == 1.0
