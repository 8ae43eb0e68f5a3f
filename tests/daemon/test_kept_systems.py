"""The system of a space in its checkpoints, its forks and the trash: files of all kinds with their
owners and modes come back, in a space with other ids too."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from carrel.linux.ids import FIRST_RANGE
from tests.busybox import busybox_image
from tests.daemon.rig import Daemon, bad, fresh_daemon, good
from tests.daemon.test_images import make, sh
from tests.ranges import GIVES
from tests.sampling import examples

ROOT = os.geteuid() == 0

# What is in the system, for who is in there: kind, mode, owner, names, size; bytes and links.
LOOK = r"""
cd / && find . -xdev \( -path ./workspace -o -path ./proc -o -path ./dev -o -path ./tmp \
  -o -path ./run -o -path ./sys -o -path ./etc/hosts -o -path ./etc/hostname \
  -o -path ./etc/resolv.conf \) -prune -o ! -name . -print | busybox sort > /tmp/names
while read -r name; do
  if [ -L "$name" ]; then echo "$name $(stat -c '%F %u:%g' "$name") $(busybox readlink "$name")"
  elif [ -d "$name" ]; then stat -c '%n %F %a %u:%g' "$name"
  elif [ -f "$name" ]; then
    echo "$(stat -c '%n %F %a %u:%g %s %Y' "$name") $(busybox md5sum < "$name")"
  else stat -c '%n %F %a %u:%g' "$name"; fi
done < /tmp/names; rm /tmp/names
"""
MUCH = """
echo mine > /etc/motd; rm /bin/true; mkdir -p /opt/a/b /var/lib/x; echo deep > /opt/a/b/c
ln -s ../opt /var/link; mkfifo /var/pipe; printf 1 > /opt/one; ln /opt/one /opt/two
rm -r /root; echo 'a file now' > /root; chmod 700 /opt/a; touch -d '2001-02-03 04:05:06' /opt/one
chmod 750 /opt/a/b/c; chmod 1777 /var/lib/x; echo secret > /opt/k; chmod 600 /opt/k
echo none > /opt/none; chmod 000 /opt/none
"""
OWNERS = """
chown 1234:1234 /opt/a/b/c /opt/k /bin/false; chown -h 7:8 /var/link; chown 9:10 /var/lib /etc
chmod 4755 /opt/a/b/c; chown 33:33 /var/pipe
"""


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    with fresh_daemon() as found:
        yield found


@pytest.fixture
def client(shared: Daemon) -> httpx.Client:
    return shared.local()


@pytest.fixture
def image(shared: Daemon) -> Path:
    found = busybox_image(shared.data, user="worker")
    for name in ("lib", "lib/inner"):
        (found / name).mkdir(exist_ok=True)
        (found / name / "file").write_text(name)
    return found


def do(client: httpx.Client, space: str, script: str) -> str:
    code, text = sh(client, space, f"set -e; {script}", timeout_s=60)
    assert code == 0, text
    return text


def look(client: httpx.Client, space: str) -> list[str]:
    return do(client, space, LOOK).splitlines()


def keep(client: httpx.Client, space: str) -> str:
    return str(good(client.post(f"/v1/spaces/{space}/checkpoints", json={}))["id"])


def rewind(client: httpx.Client, space: str, to: str) -> str:
    done = client.post(f"/v1/spaces/{space}/rewind", json={"checkpoint": to})
    return str(good(done)["id"])


def fork(client: httpx.Client, space: str, checkpoint: str = "") -> str:
    done = client.post(f"/v1/spaces/{space}/fork", json={"checkpoint": checkpoint})
    return str(good(done)["spaces"][0]["id"])


def remove(client: httpx.Client, space: str) -> Any:
    return good(client.delete(f"/v1/spaces/{space}", params={"force": "true"}))


def work(client: httpx.Client, space: str) -> None:
    do(client, space, MUCH + (OWNERS if GIVES else ""))


def test_there_and_back(client: httpx.Client, image: Path) -> None:
    space = make(client, image)
    began = look(client, space)
    work(client, space)
    much = look(client, space)
    assert len(much) > len(began) - 10 and much != began
    if GIVES:
        assert any("opt/a/b/c regular file 4755 1234:1234 5" in line for line in much)
    first = keep(client, space)
    do(client, space, "rm -r /opt /etc/motd; mkdir /root2; echo later > /bin/true; rm -r /lib")
    later = look(client, space)
    assert later not in (much, began)
    before = rewind(client, space, first)
    assert look(client, space) == much
    assert do(client, space, "stat -c %h /opt/one; echo x >> /opt/one; cat /opt/two") == "2\n1x\n"
    rewind(client, space, "start")
    assert look(client, space) == began
    # What is mounted in the sandbox that runs is still there.
    assert do(client, space, "echo x > /workspace/a; cat /workspace/a; ls /proc/self/fd > /tmp/x")
    rewind(client, space, before)
    assert look(client, space) == later
    rewind(client, space, first)
    assert look(client, space) == much
    good(client.post(f"/v1/spaces/{space}/stop", json={}))
    good(client.post(f"/v1/spaces/{space}/start", json={}))
    assert look(client, space) == much


def test_a_fork_has_it_with_its_own_ids(client: httpx.Client, image: Path, shared: Daemon) -> None:
    space = make(client, image)
    work(client, space)
    much = look(client, space)
    kept = keep(client, space)
    do(client, space, "echo more > /opt/more")
    one, two = fork(client, space, kept), fork(client, space, kept)
    now = fork(client, space)
    assert look(client, one) == look(client, two) == much
    assert look(client, now) == look(client, space) != much
    # They share what they began with, and nothing that they write.
    spaces = shared.data / "spaces"
    for forked in (one, two):
        upper = spaces / forked / "system/upper"
        assert not (upper / "opt").exists() and (spaces / forked / "system/below").is_file()
    do(client, one, "echo of the fork > /opt/k; rm /opt/two; chmod 711 /opt/a; rm -r /var")
    assert look(client, two) == much
    if ROOT:
        do(client, two, "echo x > /made; chown 1234 /made")
        made = (spaces / two / "system/upper/made").stat()
        do(client, space, "echo x > /made; chown 1234 /made")
        theirs = (spaces / space / "system/upper/made").stat()
        assert made.st_uid != theirs.st_uid and min(made.st_uid, theirs.st_uid) > FIRST_RANGE
    # A fork of a fork, a checkpoint of a fork, and what stays when the first is gone.
    ours = look(client, one)
    third = fork(client, one)
    assert look(client, third) == ours
    kept = keep(client, third)
    remove(client, space)
    do(client, third, "rm -r /opt; echo x > /opt")
    rewind(client, third, kept)
    assert look(client, third) == ours and look(client, two)[:-1]
    rewind(client, third, "start")
    assert look(client, third) == look(client, make(client, image))
    for left in (one, two, now, third):
        remove(client, left)
    assert [one for one in (shared.data / "layers").iterdir() if one.name[0] != "."] == []


def test_the_trash_brings_it_back(client: httpx.Client, image: Path, shared: Daemon) -> None:
    space = make(client, image, name="desk")
    work(client, space)
    much = look(client, space)
    keep(client, space)
    do(client, space, "echo since > /opt/since")
    since = look(client, space)
    upper = shared.data / "spaces" / space / "system/upper"
    (since_is,) = {(upper / "opt/since").stat().st_ino}
    removal = remove(client, space)
    # Nothing is copied that only has to get another name.
    files = (shared.data / "trash" / space / "parts/files").iterdir()
    assert since_is in {path.stat().st_ino for path in files}
    assert removal["kept"] and removal["kept"]["system"] > 5, removal
    listed = good(client.get("/v1/trash"))["trash"]
    (entry,) = [one for one in listed if one["space"]["id"] == space]
    assert entry["system"] == removal["kept"]["system"] and entry["bytes_kept"] > 0
    back = str(good(client.post(f"/v1/trash/{space}/restore", json={}))["id"])
    assert look(client, back) == since != much
    remove(client, back)
    # Where nothing was written there is nothing to be kept.
    plain = make(client, image)
    do(client, plain, "true")
    assert remove(client, plain)["kept"] is None


def test_too_much_of_it_loses_no_work(image: Path, data: Path) -> None:
    config = data / "config.toml"
    config.write_text("trash_bytes = 1000000\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CARREL_CONFIG", str(config))
        with fresh_daemon() as own:
            client = own.local()
            space = make(client, image)
            do(
                client,
                space,
                "busybox head -c 3000000 /dev/urandom > /big; echo work > /workspace/w",
            )
            removal = remove(client, space)
            assert removal["kept"]["changes"] == 1 and removal["kept"]["system"] == 0
            assert "system is not kept" in removal["lost"]
            back = str(good(client.post(f"/v1/trash/{space}/restore", json={}))["id"])
            assert do(client, back, "cat /workspace/w; test ! -e /big") == "work\n"


def test_what_is_being_written_is_kept_as_at_one_moment(
    client: httpx.Client, image: Path, shared: Daemon
) -> None:
    """Something writes all the time, first to the system and then to the tree: it stands still for
    the copy, and goes on. Where nothing can stand still, the answer says so."""
    space = make(client, image)
    do(client, space, "busybox head -c 20000000 /dev/zero > /large")
    # So many, without programs of their own, that on a busy machine too one of them always writes.
    script = "for i in 1 2 3 4 5 6 7 8; do (while true; do echo $i > /w$i; done) & done; "
    script += "n=0; while true; do n=$((n+1)); echo $n > /first; echo $n > second; done"
    run = {"argv": ["sh", "-c", script]}
    run_id = good(client.post(f"/v1/spaces/{space}/runs", json=run))["id"]
    do(client, space, "until test -s second; do :; done")
    if not _stands_still(client, space):
        bad(client.post(f"/v1/spaces/{space}/checkpoints", json={}), 503, "tree_unavailable")
        return
    kept = [keep(client, space) for _ in range(3)]
    for one in kept:
        forked = fork(client, space, one)
        seen = [do(client, forked, f"cat {path}").strip() for path in ("/first", "second")]
        first, second = (int(one or "-1") for one in seen)
        # One of both may be empty at that moment, as a shell writes.
        assert -1 in (first, second) or second in (first, first - 1), (first, second)
        assert (first, second) != (-1, -1)
        remove(client, forked)
    now = max(int(one or "0") for one in seen)
    do(client, space, f'until test "0$(cat second)" -gt {now}; do :; done')
    assert good(client.get(f"/v1/runs/{run_id}"))["state"] == "running"


def _stands_still(client: httpx.Client, space: str) -> bool:
    """Whether the kernel has a control group for it."""
    used = good(client.get(f"/v1/spaces/{space}/usage", params={"disk": False}))
    return used["pids"] is not None


def test_too_large_a_system_takes_no_checkpoints_away(image: Path, data: Path) -> None:
    """They say so, and a rewind leaves it alone."""
    config = data / "config.toml"
    config.write_text("checkpoint_bytes = 1000000\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CARREL_CONFIG", str(config))
        with fresh_daemon() as own:
            client = own.local()
            space = make(client, image)
            do(client, space, "echo small > /small; echo one > w")
            small = keep(client, space)
            do(client, space, "busybox head -c 3000000 /dev/urandom > /big; echo two > w")
            for _ in range(2):
                kept = good(client.post(f"/v1/spaces/{space}/checkpoints", json={}))
                assert "checkpoint_bytes" in kept["left_out"] and kept["files"] == 1
            before = good(client.post(f"/v1/spaces/{space}/rewind", json={"checkpoint": small}))
            assert (
                before["left_out"] and do(client, space, "cat w; wc -c < /big") == "one\n3000000\n"
            )
            bad(client.post(f"/v1/spaces/{space}/fork", json={}), 413, "too_large")
            do(client, space, "rm /big /small")
            good(client.post(f"/v1/spaces/{space}/fork", json={}))
            assert good(client.post(f"/v1/spaces/{space}/checkpoints", json={}))["left_out"] == ""
            rewind(client, space, small)
            assert do(client, space, "cat w /small; test ! -e /big") == "one\nsmall\n"


def test_its_changes_are_told(client: httpx.Client, image: Path) -> None:
    space = make(client, image)
    do(client, space, "echo x > a; echo mine > /etc/motd; rm -r /lib/inner; chmod 600 /lib/file")
    do(client, space, "mkdir -p /opt/new; mv /etc/group /opt/new/group")
    if GIVES:
        do(client, space, "chown 5:6 /bin/busybox")
    listed = good(client.get(f"/v1/spaces/{space}/changes", params={"system": True}))
    found = {one["path"]: (one["kind"], one["old_path"]) for one in listed["changes"]}
    wanted = {
        "/etc/motd": ("added", None),
        "/lib/file": ("mode", None),
        "/lib/inner/file": ("deleted", None),
        "/opt/new/group": ("renamed", "/etc/group"),
        **({"/bin/busybox": ("mode", None)} if GIVES else {}),
    }
    assert found == wanted and listed["total"] == len(wanted)
    some = good(client.get(f"/v1/spaces/{space}/changes", params={"system": True, "limit": 1}))
    assert (len(some["changes"]), some["total"]) == (1, len(wanted))
    # A fork's are those of both.
    forked = fork(client, space)
    do(client, forked, "echo x > /opt/more; rm /etc/motd")
    listed = good(client.get(f"/v1/spaces/{forked}/changes", params={"system": True}))
    wanted = {**wanted, "/opt/more": ("added", None)}
    del wanted["/etc/motd"]
    assert {one["path"] for one in listed["changes"]} == wanted.keys()
    plain = good(client.post("/v1/spaces", json={}))["id"]
    asked = client.get(f"/v1/spaces/{plain}/changes", params={"system": True})
    bad(asked, 422, "space_invalid")


def test_random_work_against_a_model(image: Path, data: Path) -> None:
    """Work in the system, checkpoints, rewinds, forks, removals and undeletes in any order, with a
    daemon that is killed now and then."""
    for seed in range(examples(1, exhaustive=20)):
        with fresh_daemon() as own:
            _Model(own, image, random.Random(seed)).run(examples(15, exhaustive=60))


STEPS = (
    *(
        "test -p {p} || echo {n} > {p}",
        "rm -rf {p}",
        "mkdir -p {p}; echo {n} > {p}/in",
        "mv {p} {q}",
    ),
    *("chmod {m} {p}", "ln -f {p} {q}", "ln -s {n} {q}", "chown -h {u}:{u} {p}", "mkfifo {q}"),
    "rm -rf {p}; mkdir {p}; touch -d '2001-01-01 00:00:{s}' {p}",
)
PLACES = ("/lib/file", "/lib/inner", "/lib", "/opt", "/opt/x", "/lib/new", "/etc/group", "/root")


class _Model:
    def __init__(self, daemon: Daemon, image: Path, chance: random.Random) -> None:
        self.daemon, self.chance = daemon, chance
        self.client = daemon.local()
        first = make(self.client, image)
        self.trash: dict[str, list[str]] = {}
        self.kept: dict[str, dict[str, list[str]]] = {first: {}}
        self.seen = {first: look(self.client, first)}

    def run(self, steps: int) -> None:
        actions = (*[self.work] * 4, self.keep, self.keep, *[self.rewind] * 2)
        for number in range(steps):
            rare = (self.fork, self.remove, self.undelete, self.kill)
            action = self.chance.choice((*actions, *rare))
            space = self.chance.choice(sorted(self.seen))
            action(space, number)
            for one, seen in self.seen.items():
                assert look(self.client, one) == seen, (number, action, one == space)

    def work(self, space: str, number: int) -> None:
        for _ in range(3):
            p, q = self.chance.sample(PLACES, 2)
            mode = self.chance.choice(("4755", "600", "755", "2711", "1777"))
            user = self.chance.choice((0, 5, 1234)) if GIVES else 0
            step = self.chance.choice(STEPS)
            script = step.format(p=p, q=q, n=number, m=mode, u=user, s=f"{number % 60:02}")
            sh(self.client, space, script)
        self.seen[space] = look(self.client, space)

    def keep(self, space: str, _number: int) -> None:
        self.kept[space][keep(self.client, space)] = self.seen[space]

    def rewind(self, space: str, _number: int) -> None:
        if self.kept[space]:
            to = self.chance.choice(sorted(self.kept[space]))
            before = rewind(self.client, space, to)
            self.kept[space][before], self.seen[space] = self.seen[space], self.kept[space][to]

    def fork(self, space: str, _number: int) -> None:
        if len(self.seen) < 4:
            made = fork(self.client, space)
            self.seen[made], self.kept[made] = self.seen[space], {}

    def remove(self, space: str, _number: int) -> None:
        if len(self.seen) > 1:
            if remove(self.client, space)["kept"]:
                self.trash[space] = self.seen[space]
            del self.seen[space], self.kept[space]

    def undelete(self, _space: str, _number: int) -> None:
        if self.trash and len(self.seen) < 4:
            old = self.chance.choice(sorted(self.trash))
            back = str(good(self.client.post(f"/v1/trash/{old}/restore", json={}))["id"])
            self.seen[back], self.kept[back] = self.trash.pop(old), {}

    def kill(self, _space: str, _number: int) -> None:
        self.daemon.kill()
        self.daemon.start()
        self.client = self.daemon.local()
