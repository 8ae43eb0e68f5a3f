"""The work of a space lands on a branch of its project, and nothing else of the project changes."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from carrel.app.service import Services
from carrel.domain.access import LOCAL, Caller, Scope, ScopeKind
from carrel.domain.errors import (
    Forbidden,
    LandingConflicts,
    LandingRefused,
    NothingToLand,
    NotUndoable,
)
from carrel.domain.events import EventQuery, EventType
from carrel.domain.landing import Landing, LandingState, LandRequest
from carrel.domain.projects import Project, ProjectKind
from carrel.domain.spaces import SpaceRequest
from carrel.domain.turns import TurnRequest
from carrel.review.landing import GitLander
from tests.accounts import Account
from tests.review.conftest import WORK, Repository, land, work
from tests.service.rig import RUN_S, make, run
from tests.trees.again import run_again


async def test_from_work_to_a_branch_and_back(services: Services, repository: Repository) -> None:
    first = repository.git("rev-parse", "HEAD")
    space = await make(services, repository.path, name="desk")
    await work(services, space, WORK)
    before = repository.state()
    landing = await land(services, space, message="Better greetings")
    assert landing.state is LandingState.LANDED and landing.branch == "carrel/desk"
    assert repository.state() == before, "neither checkout nor index changed"
    assert repository.git("rev-parse", "carrel/desk^") == first
    assert repository.git("log", "-1", "--format=%s%n%b", "carrel/desk").split("\n") == [
        *("Better greetings", f"Carrel-Space: {space.space_id}"),
    ]
    listed = repository.git("ls-tree", "-r", "carrel/desk")
    modes = {row.split("\t")[1]: row[:6] for row in listed.split("\n")}
    assert modes == {
        **{".gitignore": "100644", "a.txt": "100644", "link": "120000", "new.txt": "100644"},
        "src/c.py": "100755",
    }
    assert "agent 3" in repository.git("show", "carrel/desk:a.txt")
    repository.git("fsck", "--strict")
    removal = await services.spaces.review(LOCAL, space.space_id)
    assert removal.left_files == 0, "what has landed is not lost with the space"
    events = await services.store.events(EventQuery(types=frozenset({EventType.LANDED})))
    assert [event.data["branch"] for event in events] == ["carrel/desk"]

    undone = await services.landings.undo(LOCAL, "")
    assert undone.landing_id == landing.landing_id and undone.state is LandingState.UNDONE
    assert repository.git("branch", "--list", "carrel/*") == ""
    assert repository.state() == before
    with pytest.raises(NotUndoable):
        await services.landings.undo(LOCAL, "")
    with pytest.raises(NotUndoable, match="already"):
        await services.landings.undo(LOCAL, landing.landing_id)
    assert (await services.landings.list(LOCAL, 10))[0].undone_at is not None


async def test_what_moved_since_is_merged(services: Services, repository: Repository) -> None:
    space = await make(services, repository.path, name="desk")
    await work(services, space, "sed -i 's/line 3/agent 3/' a.txt")
    lines = (repository.path / "a.txt").read_text()
    now = repository.commit("moved on", a_txt=lines.replace("line 15", "person 15"))
    await land(services, space)
    both = repository.git("show", "carrel/desk:a.txt")
    assert "agent 3" in both and "person 15" in both
    assert repository.git("rev-parse", "carrel/desk^") == now
    # More work in the same space lands on top.
    await work(services, space, "echo more > more.txt")
    again = await land(services, space)
    assert again.files == 1 and repository.git("show", "carrel/desk:more.txt") == "more"
    with pytest.raises(NothingToLand):
        await land(services, space)


@pytest.mark.parametrize("commits", [False, True], ids=["squash", "commits"])
async def test_what_was_changed_again_lands_on_top(
    services: Services, repository: Repository, commits: bool
) -> None:
    """After a review, say: the same lines are no conflict with what landed before. What was taken
    back, or is on no branch any more, is as if it had never landed."""
    space = await make(services, repository.path, name="desk")
    commit = "git add -A; git -c user.name=n -c user.email=m commit -qm" if commits else ": "
    await work(services, space, f"sed -i 's/line 3$/agent 3/' a.txt; echo n > n; {commit} one")
    await work(services, space, "echo rest > rest")
    first = await land(services, space, commits=commits)
    lines = repository.git("show", "carrel/desk:a.txt") + "\n"
    repository.git("checkout", "-q", "carrel/desk")
    repository.commit("mine", a_txt=lines.replace("line 15", "person 15"))
    repository.git("checkout", "-q", "main")
    script = "sed -i 's/agent 3$/agent again/' a.txt; rm n; echo more > rest"
    await work(services, space, f"{script}; {commit} two")
    again = await land(services, space, commits=commits)
    text = repository.git("show", "carrel/desk:a.txt")
    assert "agent again" in text and "person 15" in text and again.files == 3
    assert repository.git("show", "carrel/desk:rest") == "more"
    assert repository.git("rev-list", "--count", f"{again.before}..carrel/desk") == "1"
    await services.landings.undo(LOCAL, again.landing_id)
    assert (await land(services, space, commits=commits)).files == 3
    repository.git("branch", "-D", "carrel/desk")
    whole = await land(services, space, commits=commits)
    assert whole.before == "" and (first.files, whole.files) == (3, 2)


async def test_a_conflict_leaves_the_project_as_it_is(
    services: Services, repository: Repository
) -> None:
    space = await make(services, repository.path, name="desk")
    await work(services, space, "sed -i 's/line 3$/agent 3/' a.txt")
    lines = (repository.path / "a.txt").read_text()
    repository.commit("moved on", a_txt=lines.replace("line 3\n", "person 3\n"))
    refs = repository.git("for-each-ref")
    with pytest.raises(LandingConflicts) as refusal:
        await land(services, space)
    assert repository.git("for-each-ref") == refs
    [told] = cast("list[dict[str, str]]", refusal.value.details["conflicts"])
    assert told["path"] == "a.txt" and "agent 3" in told["text"] and "person 3" in told["text"]
    assert not await services.landings.list(LOCAL, 10)


async def test_what_the_person_had_not_committed_is_not_the_agents(
    services: Services, repository: Repository
) -> None:
    lines = (repository.path / "a.txt").read_text()
    repository.write(a_txt=lines.replace("line 10", "mine 10"), mine_txt="mine\n")
    (repository.path / "old.txt").unlink()
    space = await make(services, repository.path, name="desk")
    await work(services, space, "sed -i 's/line 3$/agent 3/' a.txt; echo b >> src/b.py")
    await land(services, space)
    landed = repository.git("show", "carrel/desk:a.txt")
    assert "agent 3" in landed and "mine 10" not in landed
    changed = repository.git("diff", "--name-only", "main", "carrel/desk")
    assert changed.split("\n") == ["a.txt", "src/b.py"]


async def test_work_on_what_the_person_had_not_committed(
    services: Services, repository: Repository
) -> None:
    """It is no change of the project that is in the way, and committing is all that it takes."""
    repository.write(old_txt="mine\n")
    space = await make(services, repository.path, name="desk")
    await work(services, space, "echo more >> old.txt")
    with pytest.raises(LandingConflicts, match=r"not committed, in 1 file: old\.txt") as refused:
        await land(services, space)
    assert "Commit them" in (refused.value.hint or "")
    repository.git("commit", "-qam", "mine")
    assert (await land(services, space)).files == 1
    assert repository.git("show", "carrel/desk:old.txt") == "mine\nmore"
    repository.commit("meanwhile", old_txt="else\n")
    with pytest.raises(LandingConflicts, match="The project changed the same"):
        await land(services, space, branch="main")


@pytest.mark.parametrize("kept", ["crlf", "lf"])
async def test_line_ends_are_as_the_project_keeps_them(
    services: Services, repository: Repository, kept: str
) -> None:
    """A checkout with other line ends than the repository."""
    text = "one\r\ntwo\r\n"
    (repository.path / "w.txt").write_bytes(text.encode())
    if kept == "lf":
        repository.write(_gitattributes="*.txt text eol=crlf\n")
    repository.commit("dos")
    space = await make(services, repository.path, name="desk")
    await work(services, space, r"printf 'three\r\n' >> w.txt")
    landing = await land(services, space)
    numbers = repository.git("diff", "--numstat", "main", "carrel/desk")
    assert numbers == "1\t0\tw.txt" and landing.files == 1


HOSTILE = {
    "a link out": ("ln -s /etc/passwd out", "leads out"),
    "a link above": ("ln -s ../../x out", "leads out"),
    "a link into git": ("ln -s .git/config conf", "git's own"),
    "a link that git follows": ("rm .gitignore; ln -s a.txt .gitignore", "git would follow"),
    "a newline": (r"""python3 -c "open('a\nb','w')" """, "control"),
    "a backslash": (r"""python3 -c "open('a\\\\b','w')" """, "control"),
    "git's folder": ("mkdir .GIT; echo x > .GIT/config", "refuses the name"),
    "git's folder, short": ("mkdir -p d/git~1; echo x > d/git~1/x", "refuses the name"),
    "twins": ("echo x > A.TXT", "case"),
    "twins of folders": ("mkdir -p SRC; echo x > SRC/x", "case"),
}


@pytest.mark.parametrize("kind", HOSTILE)
async def test_what_could_harm_a_checkout_does_not_land(
    services: Services, repository: Repository, kind: str
) -> None:
    script, why = HOSTILE[kind]
    space = await make(services, repository.path, name="desk")
    await work(services, space, f"{script}; echo good > good.txt")
    refs = repository.git("for-each-ref")
    with pytest.raises(LandingRefused, match=why):
        await land(services, space)
    assert repository.git("for-each-ref") == refs


async def test_nothing_that_space_or_project_configures_runs(
    services: Services, repository: Repository, tmp_path: Path
) -> None:
    """Hooks, filters, drivers, monitors and helpers: each would leave a mark."""
    mark = tmp_path / "mark"
    planted = f"touch {mark}"
    hooks = repository.path / ".git/hooks"
    hooks.mkdir(exist_ok=True)
    for name in ("reference-transaction", "post-index-change", "post-checkout", "pre-auto-gc"):
        (hooks / name).write_text(f"#!/bin/sh\n{planted}\n")
        (hooks / name).chmod(0o755)
    config = {
        **{"core.fsmonitor": planted, "core.alternateRefsCommand": planted},
        **{"filter.x.clean": planted, "filter.x.smudge": planted, "filter.x.process": planted},
        **{"diff.external": planted, "diff.x.textconv": planted, "merge.x.driver": planted},
        **{"gpg.program": planted, "commit.gpgSign": "true", "core.pager": planted},
        "protocol.ext.allow": "always",
        "remote.origin.url": f"ext::sh -c '{planted}'",
        "remote.origin.promisor": "true",
    }
    repository.commit("attributes", _gitattributes="* diff=x merge=x\na.txt filter=x\n")
    mark.unlink(missing_ok=True)
    with (repository.path / ".git/config").open("a") as file:
        for name, value in config.items():
            file.write(f'[{_section(name)}]\n\t{name.rpartition(".")[2]} = "{value}"\n')
    space = await make(services, repository.path, name="desk")
    await work(services, space, f"echo '* merge=x' > .git/info/attributes; {WORK}")
    now = (repository.path / ".git/refs/heads/main").read_text().strip()
    landing = await land(services, space)
    assert landing.before == "" and not mark.exists()
    await services.landings.undo(LOCAL, "")
    assert not mark.exists()
    assert (repository.path / ".git/refs/heads/main").read_text().strip() == now


def _section(name: str) -> str:
    first, *middle, _ = name.split(".")
    return f'{first} "{".".join(middle)}"' if middle else first


async def test_projects_that_cannot_be_landed_in(
    services: Services, repository: Repository, tmp_path: Path
) -> None:
    space = await make(services, repository.path, name="desk")
    with pytest.raises(NothingToLand):
        await land(services, space)
    await work(services, space, "echo w > w; git checkout -q -b side 2> /dev/null")
    elsewhere = tmp_path / "elsewhere"
    repository.git("worktree", "add", "-q", "-b", "taken", str(elsewhere))
    with pytest.raises(LandingRefused, match="checked out"):
        await land(services, space, branch="taken")
    for bad in ("-x", "a..b", "a b", "x.lock", "HEAD", "a//b", "a\nb"):
        with pytest.raises(LandingRefused, match="cannot be the name"):
            await land(services, space, branch=bad)
    with pytest.raises(LandingRefused, match="author"):
        await land(services, space, author="nobody")
    tenant = Caller("blue", Scope(ScopeKind.SPACE, space.space_id))
    with pytest.raises(Forbidden):
        await services.landings.land(tenant, space.space_id, LandRequest())
    nothing = await make(services)
    await work(services, nothing, "echo w > w")
    with pytest.raises(LandingRefused):
        await land(services, nothing)
    # A branch in the way, and git at work.
    repository.git("branch", "carrel", "main")
    with pytest.raises(Exception, match="carrel"):
        await land(services, space)
    repository.git("branch", "-D", "carrel")
    (repository.path / ".git/refs/heads/side.lock").touch()
    with pytest.raises(Exception, match="lock"):
        await land(services, space, branch="side")
    (repository.path / ".git/refs/heads/side.lock").unlink()
    assert (await land(services, space, branch="side")).state is LandingState.LANDED
    assert [one.state for one in await services.landings.list(LOCAL, 10)].count(
        LandingState.LANDED
    ) == 1


READ_S = 30.0
"""For a landing that is refused, on a busy machine."""


@pytest.mark.parametrize("place", ["HEAD", "config", "objects/info/alternates"])
@pytest.mark.parametrize("device", [False, True])
async def test_what_git_would_read_for_ever(
    services: Services, repository: Repository, place: str, device: bool
) -> None:
    """Ten minutes from a pipe, and from /dev/zero all of the machine's memory."""
    space = await make(services, repository.path, name="desk")
    await work(services, space, "echo w > w")
    path = repository.path / ".git" / place
    path.unlink(missing_ok=True)
    if device:
        path.symlink_to("/dev/zero")
    else:
        os.mkfifo(path)
    async with asyncio.timeout(READ_S):
        with pytest.raises(LandingRefused, match="cannot read"):
            await land(services, space)


LINKED = ("refs/heads/carrel", "logs/refs/heads/carrel/desk", "objects/pack", "logs", "packed-refs")


@pytest.mark.parametrize("place", [*LINKED, "index"])
async def test_git_writes_through_no_link(
    services: Services, repository: Repository, tmp_path: Path, place: str
) -> None:
    """A project comes from anywhere, links in its git folder too: what they name stays as it is."""
    victim = tmp_path / "victim"
    space = await make(services, repository.path, name="desk")
    await work(services, space, "echo w > w")
    link = repository.path / ".git" / place
    if link.is_dir():
        link.rename(victim)
    elif link.exists():
        victim.write_bytes(link.read_bytes())
        link.unlink()
    else:
        victim.write_text("mine\n") if "desk" in place else victim.mkdir()
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(victim)

    def all_of_it() -> dict[Path, bytes]:
        files = [victim] if victim.is_file() else victim.rglob("*")
        return {one: one.read_bytes() for one in files if one.is_file()}

    before = all_of_it()
    with pytest.raises(LandingRefused, match="write elsewhere"):
        await land(services, space)
    assert all_of_it() == before


async def test_the_project_does_not_say_what_its_logs_have(
    services: Services, repository: Repository
) -> None:
    repository.git("config", "user.name", "$(touch x)")
    space = await make(services, repository.path, name="desk")
    await work(services, space, "echo w > w")
    await land(services, space)
    log = (repository.path / ".git/logs/refs/heads/carrel/desk").read_text()
    assert "carrel <carrel@localhost>" in log and "touch" not in log


async def test_branches_that_are_no_place_to_land(
    services: Services, repository: Repository, tmp_path: Path
) -> None:
    """The checkout would stay behind: another's name, one without commits, one that goes."""
    repository.git("symbolic-ref", "refs/heads/master", "refs/heads/main")
    space = await make(services, repository.path, name="desk")
    await work(services, space, "echo w > w")
    before = repository.state()
    with pytest.raises(LandingRefused, match="another name of refs/heads/main"):
        await land(services, space, branch="master")
    await land(services, space)
    repository.git("checkout", "-q", "carrel/desk")
    with pytest.raises(NotUndoable, match="checked out"):
        await services.landings.undo(LOCAL, "")
    repository.git("checkout", "-q", "main")
    await services.landings.undo(LOCAL, "")
    assert repository.state() == before

    unborn = Repository(tmp_path / "unborn")
    unborn.write(mine_txt="mine\n")
    unborn.git("init", "-q", "-b", "main")
    space = await make(services, unborn.path, name="other")
    await work(services, space, "echo w > w")
    with pytest.raises(LandingRefused, match="no commit yet"):
        await land(services, space, branch="main")
    assert unborn.git("for-each-ref") == ""


async def test_links_lead_out_by_way_of_others(services: Services, repository: Repository) -> None:
    repository.git("checkout", "-q", "-b", "links")
    (repository.path / "abroad").symlink_to("/etc")
    (repository.path / "hop").symlink_to("src/../a.txt")
    repository.commit("links of the project's own")
    space = await make(services, repository.path, name="desk")
    refused = {
        "mkdir -p a/b; ln -s ../.. a/b/up; ln -s up/../secret a/b/out": "'a/b/out' leads out",
        "ln -s abroad/passwd out": "'out' leads out",
        # A link of the project's own goes elsewhere when a folder becomes a link.
        "mv src x; ln -s . src": "'hop' leads out",
        "mkdir a; ln -s .. a/up; ln -s up/.Git/hooks a/hooks": "git's own",
    }
    for script, told in refused.items():
        await work(services, space, script)
        with pytest.raises(LandingRefused, match=told):
            await land(services, space)
        await work(services, space, "rm -rf a x src out; git checkout -q -- .")
    await work(services, space, "mkdir a; ln -s .. a/up; ln -s up/a.txt a/in; ln -s loop loop")
    assert (await land(services, space)).files == 3


async def test_new_files_that_a_filter_would_change(
    services: Services, repository: Repository
) -> None:
    """What the project has encrypted, or elsewhere, is not committed as it is."""
    repository.commit("attributes", keys___gitattributes="* filter=crypt\nplain -filter\n")
    space = await make(services, repository.path, name="desk")
    await work(services, space, "echo secret > keys/new.txt; echo p > keys/plain; echo w > w")
    with pytest.raises(LandingRefused, match=r"'keys/new.txt' by a filter \(crypt\)"):
        await land(services, space)
    await work(services, space, "rm keys/new.txt")
    assert (await land(services, space)).files == 2


async def test_only_what_landed_counts_as_taken(services: Services, repository: Repository) -> None:
    """Neither the agent's own commits, nor what was taken back."""
    space = await make(services, repository.path, name="desk")
    commit = "git -c user.name=n -c user.email=m commit -qm"
    await work(
        services,
        space,
        f"git checkout -q -b side; echo s > s; git add s; {commit} side; git checkout -q main;"
        " echo w > w",
    )
    await land(services, space)
    left = await services.spaces.review(LOCAL, space.space_id)
    assert (left.left_files, left.left_commits) == (0, 1)
    await services.landings.undo(LOCAL, "")
    left = await services.spaces.review(LOCAL, space.space_id)
    assert (left.left_files, left.left_commits) == (1, 1)


@pytest.mark.parametrize("kind", ["bare", "worktree", "detached", "unborn", "sha256", "packed"])
async def test_kinds_of_repositories(
    services: Services, repository: Repository, tmp_path: Path, kind: str
) -> None:
    place, project_kind = repository.path, ProjectKind.FOLDER
    if kind == "bare":
        place, project_kind = tmp_path / "bare.git", ProjectKind.GIT
        repository.git("clone", "-q", "--bare", ".", str(place))
    elif kind == "worktree":
        place = tmp_path / "linked"
        repository.git("worktree", "add", "-q", "-b", "linked", str(place))
    elif kind == "detached":
        repository.git("checkout", "-q", "--detach")
    elif kind == "packed":
        repository.git("pack-refs", "--all")
        repository.git("gc", "-q")
    elif kind in ("unborn", "sha256"):
        place = tmp_path / "other"
        place.mkdir()
        other = Repository(place)
        other.git("init", "-q", "-b", "main", f"--object-format={kind.replace('unborn', 'sha1')}")
        if kind == "sha256":
            other.commit("first", a_txt="line 3\n")
        else:
            other.write(a_txt="line 3\n")
    space = await services.spaces.create(
        LOCAL,
        SpaceRequest(Project(project_kind, str(place)), name="desk", follow_git=True),
    )
    await work(services, space, "sed -i 's/line 3$/agent 3/' a.txt; echo n > n.txt")
    landing = await land(services, space)
    repo = Repository(place)
    assert repo.git("show", "carrel/desk:n.txt") == "n"
    assert "agent 3" in repo.git("show", "carrel/desk:a.txt") and landing.files == 2
    repo.git("fsck", "--strict")
    await services.landings.undo(LOCAL, "")
    assert repo.git("branch", "--list", "carrel/*") == ""


async def test_a_caller_who_goes_does_not_end_it(
    services: Services, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And two undos at once take back two landings, or one of them says that it was too late."""
    space = await make(services, repository.path, name="desk")
    await work(services, space, "echo w > w")
    began, goes_on = threading.Event(), threading.Event()
    prepare = GitLander.prepare

    def slow(*told: Any) -> Any:
        began.set()
        assert goes_on.wait(RUN_S)
        return prepare(*told)

    monkeypatch.setattr(GitLander, "prepare", slow)
    first = asyncio.create_task(land(services, space, branch="main"))
    assert await asyncio.to_thread(began.wait, RUN_S)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    second = asyncio.create_task(land(services, space, branch="main"))
    goes_on.set()
    with pytest.raises(NothingToLand):
        await second
    assert repository.git("status", "--porcelain") == "" and (repository.path / "w").exists()
    [landing] = await services.landings.list(LOCAL, 10)
    undone = await asyncio.gather(
        *(services.landings.undo(LOCAL, landing.landing_id) for _ in range(2)),
        return_exceptions=True,
    )
    assert [type(one) for one in undone] == [Landing, NotUndoable]
    assert (await services.landings.list(LOCAL, 10))[0].state is LandingState.UNDONE


async def test_two_at_once_land_one_after_the_other(
    services: Services, repository: Repository
) -> None:
    spaces = [await make(services, repository.path, name=f"desk{n}") for n in range(3)]
    for number, space in enumerate(spaces):
        await work(services, space, f"echo {number} > f{number}.txt")
    repository.git("branch", "all")
    await asyncio.gather(*(land(services, space, branch="all") for space in spaces))
    assert repository.git("rev-list", "--count", "main..all") == "3"
    assert [repository.git("show", f"all:f{n}.txt") for n in range(3)] == ["0", "1", "2"]
    with pytest.raises(NotUndoable, match="moved"):
        oldest = (await services.landings.list(LOCAL, 10))[-1]
        await services.landings.undo(LOCAL, oldest.landing_id)


@pytest.mark.skipif(os.geteuid() != 0, reason="is already an ordinary user's run")
def test_as_an_ordinary_user(ordinary_user: Account, data: Path) -> None:
    wanted = "and_back or moved_since or no_link"
    run_again(__file__, ordinary_user, data, "-k", wanted)


async def test_not_while_an_agent_works(services: Services, repository: Repository) -> None:
    space = await make(services, repository.path, name="desk", agent="scripted")
    asked = "run echo w > w; until test -e go; do sleep 0.02; done"
    turn = await services.turns.start(LOCAL, space.space_id, TurnRequest("", asked))
    with pytest.raises(LandingRefused, match="at work"):
        await land(services, space)
    await run(services, space, "touch go")
    async with asyncio.timeout(RUN_S):
        await services.turns.wait(LOCAL, turn.run_id)
    assert (await land(services, space)).files == 2
