"""Agents that misbehave: there is always one clear answer, and nothing is left."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from carrel.app.service import Services
from carrel.domain.limits import Limits
from carrel.domain.projects import Project, ProjectKind
from carrel.domain.requests import Check, Frame, FrameKind, Generate, RequestQuery, RequestState
from tests.requests.rig import made, paths
from tests.sampling import examples
from tests.service.rig import leftovers

MANY = examples(11_000, exhaustive=100_000)
"""Names, not contents: each is a file to whoever looks."""
LINKS = (
    "run python3 -c \"import os; [open(f'f{i}','w').close() for i in range(4)]; "
    f"[os.link(f'f{{i % 4}}', f'n{{i}}') for i in range({MANY - 4})]\""
)
pytestmark = pytest.mark.asyncio(loop_scope="module")


async def asked(
    services: Services, place: Path, script: str, **more: object
) -> tuple[Frame, list[Frame]]:
    """Its outcome; nothing of it is on the machine afterwards."""
    request, frames = await made(services, Generate(script, **more))  # type: ignore[arg-type]
    assert [frame.kind for frame in frames].count(FrameKind.RESULT) + [
        frame.kind for frame in frames
    ].count(FrameKind.ERROR) == 1
    assert leftovers(place, request.space_id) == []
    assert services.journal.get(request.space_id) is None
    return frames[-1], frames


def files(outcome: Frame) -> list[Mapping[str, object]]:
    found = outcome.data["files"]
    assert isinstance(found, list)
    return found


async def test_it_hangs(services: Services, place: Path) -> None:
    outcome, _ = await asked(services, place, "write a.txt a\nsleep 1000", timeout_s=1.0)
    assert (outcome.kind, outcome.data["code"], outcome.data["step"]) == (
        FrameKind.ERROR,
        "timeout",
        "working",
    )


async def test_it_hangs_and_takes_no_signal(services: Services, place: Path) -> None:
    script = "run trap '' TERM INT HUP; sleep 1000 & wait; wait; sleep 1000"
    outcome, _ = await asked(services, place, script, timeout_s=1.0)
    assert outcome.data["code"] == "timeout"


@pytest.mark.parametrize(
    ("script", "code"), [("crash", "agent_crashed"), ("fail no", "agent_crashed")]
)
async def test_it_dies(services: Services, place: Path, script: str, code: str) -> None:
    outcome, _ = await asked(services, place, f"write a.txt a\n{script}")
    assert (outcome.kind, outcome.data["code"], outcome.data["retriable"]) == (
        FrameKind.ERROR,
        code,
        True,
    )


async def test_it_produces_nothing(services: Services, place: Path) -> None:
    outcome, _ = await asked(services, place, "say all done, I promise")
    assert (outcome.kind, outcome.data["complete"], files(outcome)) == (FrameKind.RESULT, False, [])


async def test_what_it_says_is_not_what_it_did(services: Services, place: Path) -> None:
    outcome, _ = await asked(services, place, "write real.py x = 1\nsay I wrote fake.py and more")
    assert [file["path"] for file in files(outcome)] == ["real.py"]


async def test_something_goes_on_behind_its_back(services: Services, place: Path) -> None:
    """What it left running is ended before its work is looked at."""
    script = "run setsid sh -c 'while :; do date >> later.txt; sleep 0.01; done' >/dev/null 2>&1 &"
    seen = Check(("sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"))
    outcome, _ = await asked(services, place, f"{script}\nwrite a.txt a", check=seen)
    check = outcome.data["check"]
    assert isinstance(check, dict)
    assert "cat /proc" in check["output"] and "later.txt" not in check["output"]


async def test_links_lead_nowhere(services: Services, place: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("nobody's business\n")
    script = (
        f"run ln -s {secret} out.txt; ln -s / root; ln -s ../../.. up; ln -s loop loop\n"
        "write in.txt a"
    )
    outcome, _ = await asked(services, place, script)
    found = {file["path"]: file for file in files(outcome)}
    assert set(found) == {"out.txt", "root", "up", "loop", "in.txt"}
    assert {found[name]["type"] for name in ("out.txt", "root", "up", "loop")} == {"symlink"}
    assert "nobody's business" not in str(outcome.data)


async def test_names_are_names(services: Services, place: Path) -> None:
    script = (
        "run python3 -c "
        r'''"[open(n, 'w').write('x') for n in (b'a\nb', b'\xff', b'-rf', b' ', b'\xc3\xa9')]"'''
    )
    outcome, _ = await asked(services, place, script)
    assert {str(file["path"]).encode("utf-8", "surrogateescape") for file in files(outcome)} == {
        b"a\nb",
        b"\xff",
        b"-rf",
        b" ",
        b"\xc3\xa9",
    }


async def test_it_deletes_everything(services: Services, place: Path, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "kept.txt").write_text("mine\n")
    origin = Project(ProjectKind.FOLDER, str(project))
    script = "run rm -rf /workspace /workspace/* .??* 2>/dev/null; true"
    outcome, _ = await asked(services, place, script, project=origin)
    assert [(file["path"], file["change"]) for file in files(outcome)] == [("kept.txt", "deleted")]
    assert (project / "kept.txt").read_text() == "mine\n"


async def test_very_many_files(services: Services, place: Path) -> None:
    outcome, _ = await asked(services, place, LINKS)
    assert outcome.kind is FrameKind.RESULT, outcome.data
    assert outcome.data["total_files"] == MANY
    assert len(files(outcome)) == 10_000


async def test_too_much_for_its_disk(services: Services, place: Path) -> None:
    """Five gigabytes where fewer are allowed."""
    outcome, _ = await asked(
        services,
        place,
        "run dd if=/dev/zero of=big bs=1M count=5000 2>&1; exit 0\nsay done",
        limits=Limits(disk_bytes=20 << 20),
    )
    if outcome.kind is FrameKind.RESULT:
        assert sum(int(str(file["bytes"])) for file in files(outcome)) <= 21 << 20
    else:
        assert outcome.data["code"] in ("agent_crashed", "insufficient_disk", "interrupted")


async def test_a_file_too_long_to_be_read(services: Services, place: Path) -> None:
    outcome, _ = await asked(services, place, "run truncate -s 5G sparse.txt\nwrite small.txt a")
    found = {file["path"]: file for file in files(outcome)}
    assert found["sparse.txt"]["bytes"] == 5 << 30
    assert found["sparse.txt"]["lines"] is None
    assert "text" not in found["sparse.txt"]
    assert found["small.txt"]["text"] == "a\n"


async def test_two_share_nothing(services: Services, place: Path) -> None:
    _, one = await made(services, Generate("write mine.txt one\nrun ls /workspace"))
    _, two = await made(
        services, Generate("write yours.txt two\nrun ls /workspace /home/user /tmp")
    )
    assert (paths(one), paths(two)) == (["mine.txt"], ["yours.txt"])
    assert "mine.txt" not in str([frame.data for frame in two])


async def test_a_check_that_cannot_be(services: Services, place: Path) -> None:
    outcome, _ = await asked(
        services, place, "write a.txt a", check=Check(("no-such-program-anywhere",))
    )
    check = outcome.data["check"]
    assert isinstance(check, dict)
    assert (outcome.data["complete"], check["passed"], check["reason"]) == (
        False,
        False,
        "command_not_found",
    )


async def test_a_check_that_hangs(services: Services, place: Path) -> None:
    outcome, _ = await asked(
        services, place, "write a.txt a", check=Check(("sleep", "1000"), timeout_s=0.5)
    )
    check = outcome.data["check"]
    assert isinstance(check, dict)
    assert (check["passed"], check["reason"]) == (False, "timeout")


async def test_a_check_that_writes(services: Services, place: Path) -> None:
    """What it makes is there when the files are looked at, and is told as what it is."""
    outcome, _ = await asked(
        services, place, "write a.txt a", check=Check(("sh", "-c", "touch report.xml"))
    )
    assert [file["path"] for file in files(outcome)] == ["a.txt", "report.xml"]
    assert outcome.data["complete"] is True


async def test_its_project_is_not_there(services: Services, place: Path, tmp_path: Path) -> None:
    """What can only be known when it is read is told then."""
    origin = Project(ProjectKind.FOLDER, str(tmp_path / "missing"))
    outcome, _ = await asked(services, place, "write a.txt a", project=origin)
    assert (outcome.kind, outcome.data["code"], outcome.data["step"]) == (
        FrameKind.ERROR,
        "project_not_found",
        "making",
    )
    [request] = await services.store.requests(RequestQuery(limit=1))
    assert request.state is RequestState.FAILED
