"""A space's whole life, with the real store, trees and sandboxes."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path
from typing import cast

import pytest

from carrel import __version__
from carrel.app.service import Services
from carrel.domain.access import LOCAL, Caller, Scope, ScopeKind
from carrel.domain.errors import (
    BaseNotFound,
    CommandNotFound,
    Forbidden,
    GitFailed,
    InsufficientDisk,
    KeyReused,
    NameTaken,
    PathInvalid,
    ProjectNotFound,
    SpaceAmbiguous,
    SpaceNotFound,
    StateConflict,
    UnexportedChanges,
)
from carrel.domain.events import EventQuery, EventType
from carrel.domain.projects import BaseRequest, OnProgress, Project, ProjectKind
from carrel.domain.runs import RunState, Stream
from carrel.domain.runtimes import Command, ExitReason, Network
from carrel.domain.spaces import Retention, Space, SpaceQuery, SpaceRequest, SpaceState
from carrel.domain.trees import Base, Change, Owner, ReviewQuery, Tree, TreeDriver
from carrel.runtimes.limits.disk import Use
from carrel.runtimes.limits.watch import LimitWatch
from carrel.service import doctor, open_spaces
from carrel.service import runs as runs_module
from carrel.service.creation import BUILDS, BUILDS_OF_ONE, Creator
from carrel.service.spaces import LOOKS, SpaceChanges
from carrel.trees import folders
from carrel.trees.bases.store import BaseStore
from tests.faults.rig import launcher_pid
from tests.service.rig import RUN_S, leftovers, make, output, request, run


async def test_from_the_first_to_the_last(services: Services, project: Path, data: Path) -> None:
    space = await make(services, project, name="one", labels={"team": "blue"})
    assert space.state is SpaceState.READY
    assert space.runtime == "bubblewrap"
    record, said = await run(services, space, "cat greet.py; echo oops >&2; exit 3")
    assert said == "print('hello')\noops\n"
    assert record.state is RunState.ENDED
    assert record.exit is not None and record.exit.code == 3
    assert (await services.spaces.get(LOCAL, "one")).state is SpaceState.READY
    stopped = await services.spaces.stop(LOCAL, "one")
    assert stopped.state is SpaceState.STOPPED
    with pytest.raises(StateConflict):
        await run(services, space, "true")
    assert (await services.spaces.start(LOCAL, "one")).state is SpaceState.READY
    assert (await run(services, space, "cat notes/a.txt"))[1] == "a\n"
    removal = await services.spaces.remove(LOCAL, "one")
    assert removal.changes == 0 and removal.kept is None
    assert leftovers(data, space.space_id) == []
    with pytest.raises(SpaceNotFound):
        await services.spaces.existing(LOCAL, space.space_id)
    assert (await services.spaces.get(LOCAL, space.space_id)).state is SpaceState.REMOVED


async def test_changes_keep_it_from_being_removed(
    services: Services, project: Path, data: Path
) -> None:
    space = await make(services, project, name="one", env={"A": "b"})
    await run(services, space, "echo new > new.txt; rm notes/a.txt; chmod +x greet.py")
    with pytest.raises(UnexportedChanges) as refusal:
        await services.spaces.remove(LOCAL, "one")
    assert refusal.value.details["changes"] == 3
    assert (await services.spaces.get(LOCAL, "one")).state is SpaceState.READY
    before = await services.spaces.review(LOCAL, "one", ReviewQuery(most=10))
    first = await services.spaces.review(LOCAL, "one", ReviewQuery(most=1))
    assert (first.listed, first.total, first.left_files) == (before.listed[:1], 3, 3)
    removal = await services.spaces.remove(LOCAL, "one", force=True)
    assert removal.changes == 3 and removal.kept is not None
    assert leftovers(data, space.space_id) == []
    back = await services.spaces.undelete(LOCAL, "one")
    assert back.space_id != space.space_id
    assert (back.name, back.restored_from, dict(back.env)) == ("one", space.space_id, {"A": "b"})
    assert await services.spaces.review(LOCAL, "one", ReviewQuery(most=10)) == before
    assert (await run(services, back, "cat new.txt; ls notes"))[1] == "new\n"
    assert await services.spaces.trashed(LOCAL) == []
    with pytest.raises(SpaceNotFound):
        await services.spaces.undelete(LOCAL, space.space_id)


NESTING = """
import os
here = os.open(".", os.O_RDONLY)
for _ in range(1000):
    os.mkdir("d" * 250, dir_fd=here)
    here = os.open("d" * 250, os.O_RDONLY, dir_fd=here)
"""


async def test_folders_nested_without_end(
    services: Services, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody reads them through, and they keep no space from being removed."""

    async def seen(*_: object) -> Use:
        return Use(0, 0)

    # Whoever is seen at it is ended: what cannot be measured is over the disk limit.
    monkeypatch.setattr(LimitWatch, "_walk", seen)
    space = await make(services)
    record, said = await run(services, space, f"ulimit -n 2000; python3 -c '{NESTING}'")
    assert record.exit is not None and record.exit.code == 0, said
    for asking in (
        services.spaces.review(LOCAL, space.space_id),
        services.spaces.remove(LOCAL, space.space_id),
    ):
        with pytest.raises(PathInvalid):
            await asking
    removal = await services.spaces.remove(LOCAL, space.space_id, force=True)
    assert removal.kept is None and "nested too deep" in removal.lost
    assert leftovers(data, space.space_id) == []


async def test_a_folder_with_files_without_end(
    services: Services, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "MOST_ENTRIES", 100)
    space = await make(services)
    await run(services, space, "mkdir many; cd many; touch $(seq 100)")
    assert (await services.spaces.review(LOCAL, space.space_id)).total == 100
    await run(services, space, "touch many/more")
    with pytest.raises(PathInvalid, match="too many"):
        await services.spaces.review(LOCAL, space.space_id)
    removal = await services.spaces.remove(LOCAL, space.space_id, force=True)
    assert removal.kept is None and "too many" in removal.lost
    assert leftovers(data, space.space_id) == []


async def test_what_was_said_of_the_network_holds_after_undelete(services: Services) -> None:
    """Else the next agent in it would open what somebody wanted closed."""
    space = await make(services, name="closed", network_asked=True)
    await run(services, space, "echo new > new.txt")
    await services.spaces.remove(LOCAL, "closed", force=True)
    back = await services.spaces.undelete(LOCAL, "closed")
    assert back.network is Network.NONE and back.network_asked


async def test_the_tree_is_at_the_projects_own_path_too(
    services: Services, project: Path, data: Path
) -> None:
    """So that a virtual environment works, whose scripts name their interpreter by that path. It is
    the tree, and nothing else of the way there is seen."""
    base = sys._base_executable  # type: ignore[attr-defined]
    await asyncio.to_thread(
        subprocess.run, [base, "-m", "venv", "--without-pip", str(project / ".venv")], check=True
    )
    tool = project / ".venv" / "bin" / "tool"
    tool.write_text(f"#!{project}/.venv/bin/python\nimport sys; print(sys.prefix)\n")
    tool.chmod(0o755)
    (project.parent / "beside").write_text("not to be seen")
    space = await make(services, project)
    assert (await run(services, space, ".venv/bin/tool"))[1] == f"{project}/.venv\n"
    await run(services, space, f"echo new > {project}/new")
    assert (await run(services, space, "cat new"))[1] == "new\n"
    assert not (project / "new").exists()
    (project / "later").write_text("of the checkout alone")
    assert (await run(services, space, f"ls {project.parent}"))[1] == f"{project.name}\n"
    assert "No such file" in (await run(services, space, f"cat {project}/later"))[1]


@pytest.mark.parametrize("where", ["/tmp", "/home/user"])
async def test_links_in_a_space_lead_no_mount_to_the_host(
    services: Services, tmp_path: Path, data: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What makes the sandbox follows them, and sees all of the host then. Here the tree is shown
    below a folder that the space writes."""
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o777)
    victim.chmod(0o777)
    place = f"{where}/a/b/project"
    monkeypatch.setattr(open_spaces, "own_path", lambda _space: place)
    space = await make(services)
    for link in (f"/oldroot{victim}", f"/newroot{victim}", str(victim)):
        await run(
            services,
            space,
            f"cd {where} && mv a old && ln -s {link} a && rm -rf old.*; mv old old.$$; ls -l",
        )
        await services.spaces.stop(LOCAL, space.space_id, 0.1)
        await services.spaces.start(LOCAL, space.space_id)
        assert (await run(services, space, f"echo x > {place}/f; cat /workspace/f"))[1] == "x\n"
        assert list(victim.iterdir()) == []


async def test_code_in_a_space_keeps_no_mount_from_its_place(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by what it has put there, of which nothing is lost, nor by modes."""
    place = f"/tmp/a/{'n' * 255}/project"
    monkeypatch.setattr(open_spaces, "own_path", lambda _space: place)
    space = await make(services)
    for hostile in (
        "mv a old && ln -s /nowhere a && mkdir -p a.aside/x",
        "rm -r a.aside && echo kept > a.aside && mv a old2 && echo put > a",
        "chmod 0 a/n* a .",
        f"mv a/n* a/old && touch a/{'n' * 255} && chmod 500 a",
    ):
        assert (await run(services, space, f"cd /tmp && {hostile}"))[1] == ""
        await services.spaces.stop(LOCAL, space.space_id, 0.1)
        await services.spaces.start(LOCAL, space.space_id)
        assert (await run(services, space, f"echo x > {place}/f; cat /workspace/f"))[1] == "x\n"
    kept = "cd /tmp && cat a.aside a.aside-* 2>/dev/null; readlink a.aside-*"
    assert (await run(services, space, kept))[1] == "kept\nput\n/nowhere\n"


async def test_git_commits_in_every_space(
    services: Services, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the daemon's user, by what that one has told git; a tenant's as nobody. What the agent
    tells git afterwards stays."""
    mine = project.parent / "gitconfig"
    mine.write_text("[user]\n\tname = Ada\n\temail = ada@example.org\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(mine))
    commit = "git init -q .; git commit -q --allow-empty -m x; git log --format='%an <%ae>'"
    space = await make(services, project)
    assert (await run(services, space, commit))[1] == "Ada <ada@example.org>\n"
    await run(services, space, "git config --global user.name Eve")
    await services.spaces.stop(LOCAL, space.space_id)
    await services.spaces.start(LOCAL, space.space_id)
    assert (await run(services, space, "git config user.name"))[1] == "Eve\n"
    guest = Caller("tk_1", Scope(ScopeKind.LABEL, "team=blue"))
    theirs = await services.spaces.create(guest, request())
    assert (await run(services, theirs, commit))[1] == "Carrel <carrel@localhost>\n"


async def test_git_notes_are_no_changes(services: Services, project: Path) -> None:
    script = f"cd {project} && git init -q && git add -A && git commit -qm one"
    made = await asyncio.create_subprocess_shell(script)
    assert await made.wait() == 0
    space = await make(services, project)
    await run(services, space, "git status; touch greet.py; git status; git log")
    assert await services.spaces.unexported(space) == 0
    record, said = await run(services, space, "git switch -qc work")
    assert record.exit is not None and record.exit.code == 0, said
    assert await services.spaces.unexported(space) == 0, "nothing is on that branch yet"
    await run(services, space, "git commit -q --allow-empty -m two")
    assert await services.spaces.unexported(space) == 1


async def test_what_cannot_be_made_leaves_nothing(
    services: Services, data: Path, tmp_path: Path
) -> None:
    with pytest.raises(ProjectNotFound):
        await make(services, tmp_path / "nowhere", name="one")
    with pytest.raises(BaseNotFound):
        await make(services, base_id="0" * 26)
    assert leftovers(data) == []
    assert (await services.spaces.list(LOCAL, SpaceQuery())).spaces == ()
    # The name is free again.
    await make(services, name="one")


@pytest.mark.parametrize("claimed", [False, True])
async def test_a_disk_that_is_full_when_its_folder_is_made(
    services: Services, project: Path, data: Path, monkeypatch: pytest.MonkeyPatch, claimed: bool
) -> None:
    """Undoing needs no room: it takes no user only to give it back."""
    users = services.spaces._creator.users
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(data))

    def claim(_: Creator, space: Space, *_more: object) -> Owner:
        if claimed:
            users.take(space.space_id)
        monkeypatch.setattr(type(users), "take", refuse)
        raise full

    def refuse(*_: object) -> Owner:
        raise full

    monkeypatch.setattr(Creator, "_claim", claim)
    with pytest.raises(InsufficientDisk) as caught:
        await make(services, project, name="full")
    assert caught.value.hint
    gone = SpaceQuery(states=frozenset({SpaceState.REMOVED}))
    (space,) = (await services.spaces.list(LOCAL, gone)).spaces
    assert space.problem is not None and space.problem.code == "insufficient_disk"
    assert users.find(space.space_id) is None or os.geteuid() != 0
    assert leftovers(data, space.space_id) == []


async def test_names_and_beginnings(services: Services) -> None:
    first, second = await make(services, name="one"), await make(services, name="two")
    with pytest.raises(NameTaken):
        await make(services, name="one")
    assert (await services.spaces.get(LOCAL, first.space_id[:8])).space_id == first.space_id
    with pytest.raises(SpaceAmbiguous):
        await services.spaces.get(LOCAL, "sp_")
    for word in ("o", "onee", "%", "sp_%", "", "../one", second.space_id + "a"):
        with pytest.raises((SpaceNotFound, SpaceAmbiguous)):
            await services.spaces.get(LOCAL, word)
    renamed = await services.spaces.update(LOCAL, "two", SpaceChanges(name="three"))
    assert renamed.name == "three"
    with pytest.raises(NameTaken):
        await services.spaces.update(LOCAL, "three", SpaceChanges(name="one"))
    assert (await services.spaces.get(LOCAL, "three")).space_id == second.space_id


async def test_a_key_makes_a_retry_safe(services: Services) -> None:
    wanted = request(name="one")
    made = await asyncio.gather(*(services.spaces.create(LOCAL, wanted, key="k") for _ in range(5)))
    assert len({space.space_id for space in made}) == 1
    with pytest.raises(KeyReused):
        await services.spaces.create(LOCAL, request(name="two"), key="k")
    other = Caller("tk_x", Scope(ScopeKind.ADMIN))
    assert (await services.spaces.create(other, request(name="two"), key="k")).name == "two"


async def test_a_failed_request_can_be_sent_again(services: Services, tmp_path: Path) -> None:
    wanted = request(tmp_path / "project")
    with pytest.raises(ProjectNotFound):
        await services.spaces.create(LOCAL, wanted, key="k")
    (tmp_path / "project").mkdir()
    assert (await services.spaces.create(LOCAL, wanted, key="k")).state is SpaceState.READY


async def test_many_commands_at_once(services: Services) -> None:
    space = await make(services)
    done = await asyncio.gather(*(run(services, space, f"echo {number}") for number in range(20)))
    assert [said for _, said in done] == [f"{number}\n" for number in range(20)]
    assert (await services.spaces.get(LOCAL, space.space_id)).state is SpaceState.READY
    runs = await services.store.runs(space.space_id)
    assert len(runs) == 20
    assert all(record.state is RunState.ENDED for record in runs)


async def test_old_runs_go_with_their_output(
    services: Services, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs_module, "PRUNE_EVERY", 5)
    kept = dataclasses.replace(services.runs._keeping, runs=3)
    monkeypatch.setattr(services.runs, "_keeping", kept)
    space = await make(services)
    said = [(await run(services, space, f"echo {number}"))[0] for number in range(10)]
    async with asyncio.timeout(RUN_S):
        while len(await services.store.runs(space.space_id)) > 3:
            await asyncio.sleep(0.01)
    left = {record.run_id for record in await services.store.runs(space.space_id)}
    assert left == {record.run_id for record in said[-3:]}
    folders = data / "spaces" / space.space_id / "runs"
    async with asyncio.timeout(RUN_S):
        while {path.name for path in folders.iterdir()} != left:
            # They go after the records.
            await asyncio.sleep(0.01)


async def test_a_command_that_cannot_run_is_recorded(services: Services) -> None:
    space = await make(services)
    with pytest.raises(CommandNotFound):
        await services.runs.start(space.space_id, Command(("no-such-program",)))
    (record,) = await services.store.runs(space.space_id)
    assert record.state is RunState.FAILED and record.failure_code == "command_not_found"
    assert (await services.spaces.get(LOCAL, space.space_id)).state is SpaceState.READY


async def test_a_stop_ends_what_runs(services: Services, data: Path) -> None:
    space = await make(services)
    record = await services.runs.start(
        space.space_id, Command(("sh", "-c", "echo begun; setsid sleep 1000 & exec sleep 1000"))
    )
    assert (await services.spaces.get(LOCAL, space.space_id)).state is SpaceState.RUNNING
    async with (
        asyncio.timeout(RUN_S),
        aclosing(services.runs.follow(record, Stream.STDOUT, 0)) as pieces,
    ):
        assert (await anext(pieces)).data == b"begun\n"
    await services.spaces.stop(LOCAL, space.space_id, 0.5)
    ended = await services.runs.get(record.run_id)
    assert ended.exit is not None and ended.exit.reason is ExitReason.STOPPED
    assert await output(services, ended) == "begun\n"
    assert not [one for one in leftovers(data, space.space_id) if one.startswith("process")]


async def test_starts_race_with_a_removal(services: Services, data: Path) -> None:
    """Each command either runs in a space that is there, or is refused; nothing is left."""
    space = await make(services)

    async def try_run() -> str:
        try:
            record, _ = await run(services, space, "echo x > f; rm f")
        except (StateConflict, SpaceNotFound):
            return "refused"
        return str(record.state)

    tries = [asyncio.create_task(try_run()) for _ in range(10)]
    await asyncio.sleep(0)
    async with asyncio.timeout(RUN_S):
        await services.spaces.remove(LOCAL, space.space_id, force=True)
        found = await asyncio.gather(*tries)
    assert set(found) <= {"refused", "ended"}
    assert leftovers(data, space.space_id) == []


async def test_a_caller_that_goes_away_does_not_stop_the_work(services: Services) -> None:
    task = asyncio.create_task(make(services, name="one"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(RUN_S):
        await services.shared.tasks.close()
    assert (await services.spaces.get(LOCAL, "one")).state is SpaceState.READY


async def test_scopes(services: Services) -> None:
    blue = Caller("tk_1", Scope(ScopeKind.LABEL, "team=blue"))
    mine = await services.spaces.create(blue, request(name="mine"))
    theirs = await make(services, name="theirs")
    assert mine.labels == {"team": "blue"}
    page = await services.spaces.list(blue, SpaceQuery())
    assert [space.name for space in page.spaces] == ["mine"] and page.total == 1
    for word in ("theirs", theirs.space_id, theirs.space_id[:9]):
        for attempt in (
            services.spaces.get(blue, word),
            services.spaces.stop(blue, word),
            services.spaces.start(blue, word),
            services.spaces.remove(blue, word, force=True),
            services.spaces.review(blue, word),
            services.spaces.verify(blue, word),
            services.spaces.update(blue, word, SpaceChanges(name="stolen")),
            services.files.use(blue, word, lambda files: files.list()),
        ):
            with pytest.raises(SpaceNotFound):
                await attempt
    with pytest.raises(Forbidden):
        await services.spaces.update(blue, "mine", SpaceChanges(labels={}))
    with pytest.raises(Forbidden):
        await services.collector.run(blue)


async def test_the_log_tells_everything_in_order(services: Services) -> None:
    space = await make(services)
    await run(services, space, "true")
    await services.spaces.remove(LOCAL, space.space_id)
    events, _ = await services.feed.read(LOCAL, EventQuery(limit=1000))
    assert [event.seq for event in events] == list(
        range(events[0].seq, events[0].seq + len(events))
    )
    states = [event.data["to"] for event in events if event.type == EventType.SPACE_STATE]
    assert states == [
        "creating",
        "ready",
        "running",
        "ready",
        "stopping",
        "stopped",
        "removing",
        "removed",
    ]
    begun = [event.data["step"] for event in events if event.type == EventType.STEP_BEGUN]
    done = [event.data["step"] for event in events if event.type == EventType.STEP_DONE]
    assert begun == done == ["base", "tree", "sandbox", "stop", "keep", "tree", "folder"]


async def test_a_reader_of_events_misses_nothing(services: Services) -> None:
    seen: list[int] = []

    async def follow() -> None:
        async for event in services.feed.follow(LOCAL, EventQuery()):
            seen.append(event.seq)
            if event.data.get("to") == "removed":
                return

    task = asyncio.create_task(follow())
    space = await make(services)
    await services.spaces.remove(LOCAL, space.space_id)
    async with asyncio.timeout(RUN_S):
        await task
    assert seen == list(range(1, len(seen) + 1))


async def test_clean_up_by_age(services: Services, project: Path) -> None:
    old = Retention(ttl_s=1800)
    clean = await make(services, project, retention=old)
    dirty = await make(services, project, retention=old)
    lost = await make(services, project, retention=Retention(ttl_s=1800, discard=True))
    for space in (dirty, lost):
        await run(services, space, "echo x > new")
    services.journal.clock = lambda: time.time() + 3600
    said = await services.collector.run(LOCAL, dry_run=True)
    by_space = {action.target: action for action in said.actions}
    assert by_space[clean.space_id].done and by_space[lost.space_id].done
    assert not by_space[dirty.space_id].done
    assert (await services.spaces.get(LOCAL, clean.space_id)).state is SpaceState.READY
    await services.collector.run(LOCAL)
    found = {
        space.space_id: (await services.spaces.get(LOCAL, space.space_id)).state
        for space in (clean, dirty, lost)
    }
    assert found == {
        clean.space_id: SpaceState.REMOVED,
        dirty.space_id: SpaceState.READY,
        lost.space_id: SpaceState.REMOVED,
    }


async def test_isolation_is_proven_on_demand(services: Services) -> None:
    space = await make(services)
    proof = await services.spaces.verify(LOCAL, space.space_id)
    assert proof.holds and len(proof.attempts) > 50


async def test_the_doctor_tells_of_a_launcher_that_outlived_an_upgrade(
    services: Services, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "__version__", "99.1")
    diagnosis = await services.operations.cleanup.examine(LOCAL)
    found = [one for one in diagnosis.findings if one.name == "launcher"]
    assert [one.grade for one in found] == ["warning"]
    assert found[0].remedy == f"kill {launcher_pid(data)}"
    assert f"version {__version__}; this is 99.1" in found[0].what


async def test_the_doctor_says_what_works(services: Services) -> None:
    diagnosis = await services.operations.cleanup.examine(LOCAL)
    assert diagnosis.healthy
    assert "launcher" not in {finding.name for finding in diagnosis.findings}
    assert diagnosis.runtime == "bubblewrap"
    assert {"machine", "program", "tree", "runtime", "limit"} <= {
        finding.area for finding in diagnosis.findings
    }


def slow_builds(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, list[str]]:
    """Bases that nobody gets until the event is set; what was begun."""
    free, begun = threading.Event(), list[str]()

    def build(_bases: BaseStore, wanted: BaseRequest, _progress: OnProgress) -> Base:
        begun.append(wanted.project.location)
        free.wait(RUN_S)
        raise GitFailed("It never came.")

    monkeypatch.setattr(BaseStore, "build", build)
    return free, begun


async def test_one_label_has_half_of_the_builds(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that sends nothing for minutes keeps nobody but its own caller waiting."""
    free, begun = slow_builds(monkeypatch)

    def ask(team: str, number: int = 0) -> asyncio.Task[Space]:
        caller = Caller(f"tk_{team}", Scope(ScopeKind.LABEL, f"team={team}"))
        project = Project(ProjectKind.GIT, f"https://{team}.example/slow{number}.git")
        return asyncio.create_task(services.spaces.create(caller, SpaceRequest(project)))

    asked = [ask("blue", number) for number in range(BUILDS)]
    try:
        async with asyncio.timeout(RUN_S):
            while len(begun) < BUILDS // 2:
                await asyncio.sleep(0.01)
            asked.append(ask("red"))
            while not any("red" in one for one in begun):
                await asyncio.sleep(0.01)
        assert sum("blue" in one for one in begun) == BUILDS // 2
    finally:
        free.set()
    ended = await asyncio.gather(*asked, return_exceptions=True)
    assert all(isinstance(one, GitFailed) for one in ended)


async def test_who_waits_for_a_slow_build_takes_no_thread(
    services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are 32 for all that the owner does; as many asked for the same project at once."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(3 * BUILDS_OF_ONE + 4))
    other = await make(services)
    free, begun = slow_builds(monkeypatch)
    slow = SpaceRequest(Project(ProjectKind.FOLDER, str(tmp_path)))
    asked = [asyncio.create_task(services.spaces.create(LOCAL, slow)) for _ in range(40)]
    blue = Caller("tk_1", Scope(ScopeKind.LABEL, "team=blue"))
    try:
        async with asyncio.timeout(RUN_S):
            while len(begun) < BUILDS_OF_ONE:
                await asyncio.sleep(0.01)
            assert (await run(services, other, "echo works"))[1] == "works\n"
            assert len(begun) == BUILDS_OF_ONE
            # Nor does one account wait for what another has begun of the same project.
            same = dataclasses.replace(
                slow, project=Project(ProjectKind.GIT, "https://x.example/p")
            )
            for caller in (blue, LOCAL):
                before = len(begun)
                asked += [asyncio.create_task(services.spaces.create(caller, same)) for _ in "1234"]
                while len(begun) < before + BUILDS_OF_ONE:
                    await asyncio.sleep(0.01)
    finally:
        free.set()
    ended = await asyncio.gather(*asked, return_exceptions=True)
    assert all(isinstance(one, GitFailed) for one in ended)


async def test_one_caller_has_half_of_the_looks_through_trees(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each may take seconds, for there may be any number of files."""
    free, begun = threading.Event(), list[str]()
    callers = [Caller(f"tk_{one}", Scope(ScopeKind.LABEL, f"team={one}")) for one in ("b", "r")]
    blue, red = [await services.spaces.create(one, request()) for one in callers]
    desk = await services.spaces.opened(LOCAL, blue.space_id)

    def compare(_driver: TreeDriver, tree: Tree, **_: object) -> Iterator[Change]:
        begun.append(tree.tree_id)
        free.wait(RUN_S)
        return iter(())

    monkeypatch.setattr(type(desk.driver), "compare", compare)

    def look(caller: Caller, space: Space) -> asyncio.Task[object]:
        work = services.spaces.review(caller, space.space_id)
        return asyncio.create_task(cast(Coroutine[None, None, object], work))

    asked = [look(callers[0], blue) for _ in range(LOOKS)]
    try:
        async with asyncio.timeout(RUN_S):
            while len(begun) < LOOKS // 2:
                await asyncio.sleep(0.01)
            asked.append(look(callers[1], red))
            while red.space_id not in begun:
                await asyncio.sleep(0.01)
        assert begun.count(blue.space_id) == LOOKS // 2
    finally:
        free.set()
    await asyncio.gather(*asked)


HIDES = "echo '*' > .gitignore; echo work > work.txt"
GOES_BACK = """
[ -d .git ] || git init -q
git checkout -q -b w; echo work > work.txt; git add -A; git commit -qm work
git checkout -q --detach; rm -rf work.txt
"""
IN_A_SUBMODULE = """
set -e; git init -q; git commit -q --allow-empty -m one
git init -q /tmp/lib; git -C /tmp/lib commit -q --allow-empty -m two
git -c protocol.file.allow=always submodule --quiet add /tmp/lib deep/lib
git -C deep/lib checkout -q -b side; git -C deep/lib commit -q --allow-empty -m work
rm -rf deep .gitmodules .git/HEAD .git/refs .git/objects
"""
NO_RULE = "printf '[z-a]\\n[[:x\\n' > .gitignore; echo work > work.txt"


@pytest.mark.parametrize("work", [HIDES, GOES_BACK, IN_A_SUBMODULE, NO_RULE])
async def test_work_that_is_hard_to_see_does_not_let_a_space_go(
    services: Services, project: Path, work: str
) -> None:
    """Ignored with the rules themselves, committed elsewhere, in a submodule, beside rules that
    are none."""
    space = await make(services, project)
    record, said = await run(services, space, work)
    assert record.exit is not None and record.exit.code == 0, said
    with pytest.raises(UnexportedChanges):
        await services.spaces.remove(LOCAL, space.space_id)
    removal = await services.spaces.remove(LOCAL, space.space_id, force=True)
    assert removal.kept is not None
