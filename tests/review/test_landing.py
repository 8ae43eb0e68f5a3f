"""The work of a space lands on a branch of its project, and nothing else of the project changes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import shutil
import subprocess
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from carrel.app.service import Services
from carrel.domain.access import LOCAL, Caller, Scope, ScopeKind
from carrel.domain.errors import (
    CarrelError,
    Forbidden,
    GitFailed,
    InsufficientDisk,
    LandingConflicts,
    LandingHalfDone,
    LandingRefused,
    NothingToLand,
    NotUndoable,
)
from carrel.domain.events import EventQuery, EventType
from carrel.domain.landing import Landing, LandingPlace, LandingState, LandRequest
from carrel.domain.projects import Project, ProjectKind
from carrel.domain.spaces import Space, SpaceRequest
from carrel.domain.turns import TurnRequest
from carrel.review.checkout import CheckoutFile, ProjectCheckout, _CheckoutWriter
from carrel.review.landing import GitLander, _checkout_of
from carrel.review.project import ProjectRepository
from carrel.trees.git import process
from tests.accounts import Account, run_as
from tests.review.conftest import Repository
from tests.service.rig import RUN_S, make, run
from tests.trees.again import run_again

WORK = (
    "sed -i 's/line 3/agent 3/' a.txt; echo new > new.txt; rm old.txt; chmod +x src/b.py;"
    " ln -s a.txt link; echo noise > x.log; git mv src/b.py src/c.py 2> /dev/null || :"
)


async def land(services: Services, space: Space, **asked: str) -> Landing:
    return (await services.landings.land(LOCAL, space.space_id, LandRequest(**asked)))[0]


async def work(services: Services, space: Space, script: str) -> None:
    record, said = await run(services, space, script)
    assert record.exit is not None and record.exit.code == 0, said


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


async def test_what_a_person_writes_meanwhile_stays(
    services: Services, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a file is written, and before its turn: nothing lands then."""
    space = await make(services, repository.path, name="desk")
    await work(services, space, "echo agent | tee -a a.txt old.txt > new.txt; rm src/b.py")
    contents = ProjectRepository.contents
    for name in ("a.txt", "old.txt", "new.txt"):
        first = repository.state()

        @contextlib.contextmanager
        def slow(
            project: ProjectRepository, name: str = name
        ) -> Iterator[Callable[[str, int], None]]:
            with contents(project) as copy:

                def late(oid: str, target: int) -> None:
                    copy(oid, target)
                    (repository.path / name).write_text("mine\n")

                yield late

        with monkeypatch.context() as patch:
            patch.setattr(ProjectRepository, "contents", slow)
            with pytest.raises(LandingRefused, match="changes of its own"):
                await land(services, space, branch="main")
        assert (repository.path / name).read_text() == "mine\n"
        (repository.path / "new.txt").unlink(missing_ok=True)
        repository.git("checkout", "-q", "--", ".")
        assert repository.state() == first
    await land(services, space, branch="main")


async def test_a_large_file_is_not_held_in_memory(
    services: Services, repository: Repository
) -> None:
    space = await make(services, repository.path, name="desk")
    await work(services, space, "truncate -s 200M large")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    await land(services, space, branch="main")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10
    assert (repository.path / "large").stat().st_size == 200 << 20


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to others")
@pytest.mark.parametrize("has_git", [True, False], ids=["git", "plain"])
async def test_another_account_leads_root_elsewhere(
    services: Services, tmp_path: Path, ordinary_user: Account, has_git: bool
) -> None:
    """As root: the folder of somebody's project becomes a link to one of root's."""
    home, roots = tmp_path / "home", Repository(tmp_path / "roots")
    theirs = Repository(home / "project")
    for one in (theirs, roots):
        one.write(a_txt="a\n")
        if has_git:
            one.git("init", "-q", "-b", "main")
            one.commit("first")
    for path in (home, *home.rglob("*")):
        os.lchown(path, *ordinary_user)
    for path in home.parents[:-1]:
        path.chmod(path.stat().st_mode | 0o055)
    space = await make(services, theirs.path, name="desk")
    await work(services, space, "mkdir cron.d; echo x > cron.d/x")
    theirs.path.rename(home / "moved")
    theirs.path.symlink_to(roots.path)
    os.lchown(theirs.path, *ordinary_user)
    with pytest.raises(LandingRefused, match="owner's alone"):
        await land(services, space, **({"branch": "main"} if has_git else {}))
    assert not (roots.path / "cron.d").exists()
    # Root's own link leads to somebody's project.
    theirs.path.unlink()
    theirs.path.symlink_to(home / "moved")
    await land(services, space)


def _given(repository: Repository, account: Account) -> None:
    for path in (repository.path, *repository.path.rglob("*")):
        os.lchown(path, *account)
    for path in repository.path.parents[:-1]:
        path.chmod(path.stat().st_mode | 0o055)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to others")
def test_another_account_reads_nothing_of_roots(
    repository: Repository, ordinary_user: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root: the git that works as the project's account has no variable of ours."""
    _given(repository, ordinary_user)
    monkeypatch.setenv("OWNERS_API_KEY", "a key of root's")
    before = _children()
    with ProjectRepository(repository.path / ".git").contents():
        (git,) = _children() - before
        words = ["cat", f"/proc/{git}/cmdline", f"/proc/{git}/environ"]
        seen = run_as(ordinary_user, words)
    assert seen.returncode == 0 and "cat-file" in seen.stdout
    assert "a key of root's" not in seen.stdout


def _children() -> set[str]:
    tasks = Path("/proc/self/task").glob("*/children")
    return {pid for task in tasks for pid in task.read_text().split()}


@pytest.mark.parametrize("way", ["gone/../../made", "src/../../made", "gone/.git/hooks", "./made"])
def test_the_projects_git_names_what_is_not_in_the_project(
    repository: Repository, ordinary_user: Account, way: str
) -> None:
    """It takes every name; and whose it is can exchange what was checked when it landed."""
    first = repository.git("rev-parse", "HEAD")
    tree = repository.git("rev-parse", "HEAD:src")
    for name in reversed(way.split("/")):
        tree = _tree_of(repository, name, tree)
    after = repository.git("commit-tree", tree, "-p", first, "-m", "lies")
    if os.geteuid() == 0:
        _given(repository, ordinary_user)
    folder = repository.path / ".git"
    there = sorted(repository.path.parent.rglob("*"))
    checkout = ProjectCheckout(ProjectRepository(folder), folder, repository.path)
    with pytest.raises(LandingRefused, match="not in the project"):
        checkout.check(first, after)
    with pytest.raises(CarrelError):
        checkout.bring_or_leave(first, after)
    assert sorted(repository.path.parent.rglob("*")) == there


def test_the_projects_git_says_too_much(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_MAX_OUTPUT", 100)
    with pytest.raises(GitFailed, match="more of the project than can be held"):
        ProjectRepository(repository.path / ".git").run("ls-files", "-s")


def _tree_of(repository: Repository, name: str, below: str) -> str:
    """As `git mktree` would not make it."""
    words = ("hash-object", "-t", "tree", "-w", "--literally", "--stdin")
    entry = b"40000 %s\0" % name.encode() + bytes.fromhex(below)
    done = subprocess.run(
        ["git", *words], cwd=repository.path, input=entry, capture_output=True, check=True
    )
    return done.stdout.decode().strip()


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


@pytest.mark.parametrize("checked_out", [False, True], ids=["a branch", "the checkout's"])
async def test_a_daemon_that_died_in_between(
    services: Services,
    repository: Repository,
    monkeypatch: pytest.MonkeyPatch,
    checked_out: bool,
) -> None:
    """Before the branch moved, after, and half way back: the record says what is so, and the
    checkout goes along."""
    branch = "main" if checked_out else ""
    first = repository.state()
    space = await make(services, repository.path, name="desk")
    await work(services, space, WORK)

    def dies(*_: object) -> None:
        raise Died

    def newest() -> Awaitable[LandingState]:
        async def state() -> LandingState:
            return (await services.landings.list(LOCAL, 1))[0].state

        return state()

    places = [(ProjectRepository, "move"), (GitLander, "settle")]
    if checked_out:
        places[1] = (ProjectCheckout, "bring")
    for number, (kind, name) in enumerate(places):
        if not checked_out and number:
            continue
        with monkeypatch.context() as patch:
            patch.setattr(kind, name, dies)
            if number:
                # The branch has moved, and does not go back: nobody is there to do it.
                patch.setattr(GitLander, "move", _only_moves)
            with pytest.raises(Died):
                await land(services, space, branch=branch)
        assert await newest() is LandingState.BEGUN
        await services.landings.take_up()
        assert await newest() is (LandingState.LANDED if number else LandingState.UNDONE)
    if not checked_out:
        await land(services, space, branch=branch)
    else:
        assert repository.git("status", "--porcelain", "--untracked-files=no") == ""
        assert "agent 3" in (repository.path / "a.txt").read_text()
    with monkeypatch.context() as patch:
        patch.setattr(ProjectRepository, "move", dies)
        with pytest.raises(Died):
            await services.landings.undo(LOCAL, "")
    assert await newest() is LandingState.UNDOING
    await services.landings.take_up()
    assert await newest() is LandingState.LANDED
    await services.landings.undo(LOCAL, "")
    assert repository.state() == first


def _only_moves(lander: GitLander, place: LandingPlace, before: str, after: str) -> None:
    remote, repository = lander._located(place)
    repository.move(place.branch, before, after, "test")
    found = _checkout_of(remote, repository, place.branch)
    assert found is not None
    found.bring(before, after)


async def test_the_branch_that_is_checked_out(services: Services, repository: Repository) -> None:
    """The checkout goes along where it is clean, and what is a person's own stays."""
    repository.write(mine_txt="mine\n", src__b_py="print(1)\n")
    space = await make(services, repository.path, name="desk")
    await work(services, space, f"{WORK}; mkdir -p deep/er; echo d > deep/er/d.txt")
    lines = (repository.path / "a.txt").read_text()
    (repository.path / "a.txt").write_text(lines.replace("line 9", "mine 9"))
    refs, state = repository.git("for-each-ref"), repository.state()
    with pytest.raises(LandingRefused, match=r"changes of its own .*a\.txt"):
        await land(services, space, branch="main")
    assert (refs, state) == (repository.git("for-each-ref"), repository.state())
    (repository.path / "a.txt").write_text(lines)
    (repository.path / "new.txt").write_text("somebody else's\n")
    with pytest.raises(LandingRefused, match=r"new\.txt"):
        await land(services, space, branch="main")
    (repository.path / "new.txt").unlink()
    first = repository.state()
    await land(services, space, branch="main")
    assert repository.git("status", "--porcelain") == "?? mine.txt"
    assert not (repository.path / "old.txt").exists() and (repository.path / "link").is_symlink()
    assert "agent 3" in (repository.path / "a.txt").read_text()
    assert (repository.path / "src/c.py").stat().st_mode & 0o111
    assert (repository.path / "deep/er/d.txt").read_text() == "d\n"
    repository.write(src__c_py="mine\n")
    with pytest.raises(NotUndoable, match="changes of its own"):
        await services.landings.undo(LOCAL, "")
    repository.git("checkout", "-q", "src/c.py")
    await services.landings.undo(LOCAL, "")
    assert repository.state() == first and not (repository.path / "deep").exists()
    assert (repository.path / "mine.txt").read_text() == "mine\n"


async def test_files_become_folders_and_back(services: Services, repository: Repository) -> None:
    space = await make(services, repository.path, name="desk")
    await work(services, space, "rm -r src; echo s > src; rm a.txt; mkdir a.txt; echo x > a.txt/x")
    (repository.path / "src/mine").write_text("mine\n")
    with pytest.raises(LandingRefused, match="src"):
        await land(services, space, branch="main")
    (repository.path / "src/mine").unlink()
    first = repository.state()
    await land(services, space, branch="main")
    assert repository.git("status", "--porcelain") == ""
    assert (repository.path / "src").read_text() == "s\n"
    assert (repository.path / "a.txt/x").read_text() == "x\n"
    await services.landings.undo(LOCAL, "")
    assert repository.state() == first and (repository.path / "src/b.py").exists()


async def test_a_landing_that_the_disk_refuses(
    services: Services, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of the checkout: all is as it was."""
    space = await make(services, repository.path, name="desk")
    await work(services, space, WORK)
    first, refs = repository.state(), repository.git("for-each-ref")
    write = _CheckoutWriter._write
    written: list[str] = []

    def full(checkout: _CheckoutWriter, file: CheckoutFile) -> None:
        if file.path == "new.txt" and not written:
            written.append(file.path)
            raise OSError(errno.ENOSPC, "No space left on device")
        write(checkout, file)

    monkeypatch.setattr(_CheckoutWriter, "_write", full)
    with pytest.raises(InsufficientDisk):
        await land(services, space, branch="main")
    assert (repository.state(), repository.git("for-each-ref")) == (first, refs) and written
    assert (await services.landings.list(LOCAL, 1))[0].state is LandingState.UNDONE
    await land(services, space, branch="main")


@pytest.mark.parametrize("has_git", [True, False], ids=["git", "plain"])
async def test_a_full_disk_that_keeps_it_from_being_taken_back(
    services: Services, repository: Repository, monkeypatch: pytest.MonkeyPatch, has_git: bool
) -> None:
    """What was there before is not forgotten: the next landing or undo finishes what was begun."""
    if not has_git:
        shutil.rmtree(repository.path / ".git")
    before = {one.name: one.read_text() for one in repository.path.glob("*.txt")}
    space = await make(services, repository.path, name="desk")
    await work(services, space, "echo a | tee -a a.txt > new.txt; echo a >> old.txt")
    asked = {"branch": "main"} if has_git else {}
    write = _CheckoutWriter._write

    @contextlib.contextmanager
    def full() -> Iterator[None]:
        written: list[str] = []

        def refused(checkout: _CheckoutWriter, file: CheckoutFile) -> None:
            written.append(file.path)
            if len(written) > 1:
                raise OSError(errno.ENOSPC, "No space left on device")
            write(checkout, file)

        with monkeypatch.context() as patch:
            patch.setattr(_CheckoutWriter, "_write", refused)
            with pytest.raises(LandingHalfDone):
                yield

    with full():
        await land(services, space, **asked)
    with pytest.raises(NothingToLand) if has_git else pytest.raises(LandingRefused):
        await land(services, space, **asked)
    assert (await services.landings.list(LOCAL, 10))[-1].state is LandingState.LANDED
    assert (repository.path / "new.txt").exists()
    with full():
        await services.landings.undo(LOCAL, "")
    with pytest.raises(NotUndoable):
        await services.landings.undo(LOCAL, "")
    assert {one.name: one.read_text() for one in repository.path.glob("*.txt")} == before
    await land(services, space, **asked)


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


async def test_a_project_without_git(
    services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files themselves change, if nobody changed them meanwhile, and change back."""
    plain = Repository(tmp_path / "plain")
    lines = "".join(f"line {number}\n" for number in range(20))
    plain.write(a_txt=lines, src__b_py="print(1)\n", old_txt="old\n", mine_txt="mine\n")
    (plain.path / "a.txt").chmod(0o600)

    def files() -> dict[str, tuple[str, int]]:
        found = (path for path in plain.path.rglob("*") if not path.is_dir())
        return {
            str(one.relative_to(plain.path)): (
                str(one.readlink()) if one.is_symlink() else one.read_text(),
                one.lstat().st_mode,
            )
            for one in found
        }

    first = files()
    space = await make(services, plain.path, name="desk")
    await work(services, space, WORK.replace("git mv", "mv"))
    with pytest.raises(LandingRefused, match="no branches"):
        await land(services, space, branch="topic")
    (plain.path / "a.txt").write_text("changed\n")
    with pytest.raises(LandingRefused, match=r"changes of its own .*a\.txt"):
        await land(services, space)
    (plain.path / "a.txt").write_text(lines)
    assert files() == first

    def dies(*_: object) -> None:
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(_CheckoutWriter, "_write", dies)
        with pytest.raises(Died):
            await land(services, space)
    assert not (plain.path / "old.txt").exists() and not (plain.path / "new.txt").exists()
    left = services.settings.data / "review"
    for name in (".land-x", "kept-x"):
        (left / name).mkdir()
    await services.landings.take_up()
    assert len(list(left.iterdir())) == 1, "only what is in a record is kept"
    now = files()
    assert (await services.landings.list(LOCAL, 1))[0].state is LandingState.LANDED
    assert now["new.txt"][0] == "new\n" and "agent 3" in now["a.txt"][0] and "old.txt" not in now
    assert now["a.txt"][1] & 0o777 == 0o600 and now["src/c.py"][1] & 0o111
    await services.landings.undo(LOCAL, "")
    assert files() == first
    assert not list((services.settings.data / "review").iterdir()), "nothing is kept any more"

    # Somebody changes a file before the next daemon looks: all of it or nothing.
    with monkeypatch.context() as patch:
        patch.setattr(_CheckoutWriter, "_write", dies)
        with pytest.raises(Died):
            await land(services, space)
    (plain.path / "new.txt").write_text("mine\n")
    await services.landings.take_up()
    assert (await services.landings.list(LOCAL, 1))[0].state is LandingState.UNDONE
    assert files() == {**first, "new.txt": ("mine\n", (plain.path / "new.txt").lstat().st_mode)}
    # Nor of one that was not even written down.
    (plain.path / "new.txt").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(services.store, "write", dies)
        with pytest.raises(Died):
            await land(services, space)
    assert list((services.settings.data / "review").iterdir()) and files() == first
    await services.landings.take_up()
    assert not list((services.settings.data / "review").iterdir()), "nothing is kept any more"


class Died(BaseException):
    """As a process that is killed: nothing that comes after is done."""


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to others")
async def test_what_lands_belongs_to_the_projects_owner(
    services: Services, repository: Repository, ordinary_user: Account
) -> None:
    """As root: git works as the account whose repository it is."""
    folders = (repository.path, *repository.path.rglob("*"))
    for path in folders:
        os.lchown(path, *ordinary_user)
    for path in repository.path.parents:
        if path.owner() == "root" and path.stat().st_mode & 0o005 != 0o005:
            path.chmod(path.stat().st_mode | 0o055)
    space = await make(services, repository.path, name="desk")
    await work(services, space, WORK)
    await land(services, space, branch="main")
    others = [
        str(path.relative_to(repository.path))
        for path in (repository.path, *repository.path.rglob("*"))
        if path.lstat().st_uid != ordinary_user[0]
    ]
    assert others == []


@pytest.mark.skipif(os.geteuid() != 0, reason="is already an ordinary user's run")
def test_as_an_ordinary_user(ordinary_user: Account, data: Path) -> None:
    wanted = "and_back or checked_out or without_git or moved_since or meanwhile or no_link"
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
