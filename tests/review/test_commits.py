"""The agent's own commits land one by one, whatever its git folder has."""

from __future__ import annotations

import pytest

from carrel.app.service import Services
from carrel.domain.access import LOCAL
from carrel.domain.errors import LandingConflicts, LandingRefused, NothingToLand
from tests.review.conftest import Repository, land, work
from tests.service.rig import make

AGENT = "export GIT_AUTHOR_NAME='Agent Smith' GIT_AUTHOR_EMAIL=smith@example.org"
COMMIT = "git -c user.name=Smith -c user.email=s@example.org commit -q"


def log(repository: Repository, what: str, *, format: str = "%s") -> list[str]:
    return repository.git("log", "--reverse", f"--format={format}", what).split("\n")


async def test_commits_land_one_by_one(services: Services, repository: Repository) -> None:
    """On what moved since, with authors, dates and messages; what was not committed comes last, and
    what the person had not committed does not come."""
    lines = (repository.path / "a.txt").read_text()
    repository.write(a_txt=lines.replace("line 10", "mine 10"), mine_txt="mine\n")
    (repository.path / "old.txt").unlink()
    space = await make(services, repository.path, name="desk")
    await work(
        services,
        space,
        f"""set -e; {AGENT}; export GIT_AUTHOR_DATE='2001-02-03T04:05:06+0700'
        git checkout -q -b side
        sed -i 's/line 3$/agent 3/' a.txt; git add -A; {COMMIT} -m 'First: ü' -m 'A body.'
        sed -i 's/line 4$/agent 4/' a.txt; echo n > n.txt; chmod +x src/b.py; mkdir d
        ln -s ../a.txt d/l; git rm -q --cached mine.txt; git add .; {COMMIT} -m Second
        git rm -rq d; mkdir n; git mv n.txt n/n; {COMMIT} -m Third
        git gc -q; echo rest > rest.txt; echo more >> n/n; echo gone > n.log""",
    )
    repository.git("stash", "-q", "-u")
    moved = repository.commit("moved on", later_txt="later\n")
    landing = await land(services, space, commits=True)
    assert landing.before == "" and log(repository, "main..carrel/desk") == [
        *("First: ü", "Second", "Third", "Land the work of desk"),
    ]
    first = "carrel/desk~3"
    assert repository.git("rev-parse", "carrel/desk~4") == moved
    assert log(repository, f"{first}^!", format="%an %ae %ad%n%b") == [
        *("Agent Smith smith@example.org Sat Feb 3 04:05:06 2001 +0700", "A body."),
    ]

    def changed(what: str) -> list[str]:
        return repository.git("diff", "--name-status", "--no-renames", f"{what}^", what).split("\n")

    assert changed(first) == ["M\ta.txt"]
    assert changed("carrel/desk~2") == ["M\ta.txt", "A\td/l", "A\tn.txt", "M\tsrc/b.py"]
    assert changed("carrel/desk~1") == ["D\td/l", "D\tn.txt", "A\tn/n"]
    assert changed("carrel/desk") == ["M\tn/n", "A\trest.txt"]
    text = repository.git("show", "carrel/desk:a.txt")
    assert "agent 3" in text and "agent 4" in text and "mine" not in text
    repository.git("fsck", "--strict")
    left = await services.spaces.review(LOCAL, space.space_id)
    assert (left.left_files, left.left_commits) == (0, 0), "commits that landed are taken"
    with pytest.raises(NothingToLand):
        await land(services, space, commits=True)
    await services.landings.undo(LOCAL, "")
    left = await services.spaces.review(LOCAL, space.space_id)
    assert left.left_commits == 3 and repository.git("branch", "--list", "carrel/*") == ""
    # The same work as one commit has the same files.
    await land(services, space)
    assert repository.git("diff", landing.after, "carrel/desk") == ""
    assert repository.git("rev-list", "--count", "main..carrel/desk") == "1"


async def test_only_commits_or_only_the_rest(services: Services, repository: Repository) -> None:
    space = await make(services, repository.path, name="desk")
    await work(services, space, f"echo a > a; git add a; {COMMIT} -m one")
    await land(services, space, commits=True, branch="main")
    assert log(repository, "main") == ["first", "one"]
    assert (repository.path / "a").read_text() == "a\n"
    await work(services, space, "echo b > b")
    await land(services, space, commits=True, branch="main", message="The rest")
    assert log(repository, "main") == ["first", "one", "The rest"]


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (f"git checkout -q -b x; echo x > x; git add x; {COMMIT} -m x; git checkout -q main;"
         f" echo y > y; git add y; {COMMIT} -m y; git -c user.name=n -c user.email=m"
         " merge -q --no-edit x", "is a merge"),
        (f"git checkout -q --orphan new; {COMMIT} -m new", "written anew"),
        (f"{COMMIT} --amend -m first2", "written anew"),
        (f"ln -s /etc/passwd l; git add l; {COMMIT} -m l; git rm -q l; {COMMIT} -m clean",
         "leads out"),
        (f"git init -q sub; git -C sub -c user.name=n -c user.email=m commit -q --allow-empty -m s;"
         f" git add sub 2>&1; {COMMIT} -m sub", "repository of its own"),
        ("printf 'ref: refs/heads/none' > .git/HEAD", "on no commit"),
        (f"echo x > x; git add x; {COMMIT} -m x; rm .git/objects/??/*", "cannot be read"),
        (f"truncate -s 65M x; git add x; {COMMIT} -m x", "cannot be read"),
        (f"echo x > x; git add x; {COMMIT} -m x; rm -rf .git/objects/pack;"
         " ln -s /etc .git/objects/pack; rm .git/objects/??/*", "cannot be read"),
        ("t=$(git rev-parse HEAD^{tree}); c=$(printf 'tree %s\\nparent %s\\nauthor x <y\\n"
         "committer n <m> 1 +0000\\n\\nm\\n' $t $(git rev-parse HEAD) |"
         " git hash-object -t commit -w --stdin --literally); git update-ref HEAD $c", "author"),
        ("b=$(git hash-object -w a.txt); t=$(printf '100644 blob %s\\t.GIT\\n' $b | git mktree);"
         " c=$(git -c user.name=n -c user.email=m commit-tree $t -p HEAD -m m);"
         " git update-ref HEAD $c", "refuses the name"),
    ],
    ids=["merge", "orphan", "amended", "a link meanwhile", "submodule", "no head", "lost objects",
         "too large", "linked objects", "author", "names"],
)  # fmt: skip
async def test_commits_that_do_not_land(
    services: Services, repository: Repository, script: str, why: str
) -> None:
    space = await make(services, repository.path, name="desk")
    await work(services, space, f"{script}; echo rest > rest.txt")
    refs = repository.git("for-each-ref")
    with pytest.raises(LandingRefused, match=why):
        await land(services, space, commits=True)
    assert repository.git("for-each-ref") == refs


async def test_a_conflict_of_one_commit(services: Services, repository: Repository) -> None:
    space = await make(services, repository.path, name="desk")
    await work(
        services,
        space,
        f"echo x > x; git add x; {COMMIT} -m x; sed -i 's/line 3$/agent 3/' a.txt; {COMMIT} -am y",
    )
    lines = (repository.path / "a.txt").read_text()
    repository.commit("moved on", a_txt=lines.replace("line 3\n", "person 3\n"))
    with pytest.raises(LandingConflicts):
        await land(services, space, commits=True)
    assert repository.git("branch", "--list", "carrel/*") == ""
