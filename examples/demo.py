"""Two agents side by side on one project: what each did, the proof that neither saw the other, and
the review and landing of one.

    make demo

Needs no key, no network and no container engine: the agents are scripted ones. Nothing is
left behind: everything happens in a temporary folder, with a daemon of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import carrel
from carrel.client.models import RunResult
from carrel.client.spaces import Space
from carrel.daemon import control
from carrel.domain.errors import CarrelError

COMMAND_S = 30.0
"""A script of the demo takes a fraction of a second."""

HAIKU = """\
run mkdir -p poems
write poems/haiku.txt An old silent desk
append poems/haiku.txt an agent sits down to write
append poems/haiku.txt nobody else sees.
run sed -i 's/Hello/Good morning/' greet.py
run git add -A && git commit -qm 'Write a haiku, greet by the time of day'
say I wrote a haiku, and greet by the time of day. It is committed.
"""
TESTS = """\
write test_greet.py from greet import greet
append test_greet.py assert greet("Ada") == "Hello, Ada!"
run python3 test_greet.py
run rm notes.txt
say I wrote a test for greet, and it passes: greet.py still says Hello here.
"""
"""What each agent is told: the scripted one does it line by line."""


@dataclass(frozen=True)
class Desk:
    """One agent's space, and what it is to do there."""

    space: Space
    prompt: str


def say(text: str = "") -> None:
    print(text, flush=True)


def title(text: str) -> None:
    say(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n== {text}")


def make_project(folder: Path) -> None:
    folder.mkdir()
    (folder / "greet.py").write_text('def greet(name):\n    return f"Hello, {name}!"\n')
    (folder / "notes.txt").write_text("remember the milk\n")
    (folder / ".env").write_text("TOKEN=only-for-this-checkout\n")
    (folder / ".gitignore").write_text(".env\n")
    git = ["git", "-c", "user.name=Demo", "-c", "user.email=demo@example.org"]
    for words in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-qm", "Begin"]):
        subprocess.run([*git, *words], cwd=folder, check=True)


def choose(client: carrel.Client) -> str:
    """What confines the agents; when nothing does, that is said loudly."""
    found = client.doctor()
    if found.runtime:
        say(f"trees by {found.driver}, walls by {found.runtime}")
        gaps = [one.what for one in found.findings if one.area == "isolation"]
        for gap in gaps:
            say(f"  not covered: {gap}")
        return found.runtime
    bad = [one for one in found.findings if one.area == "runtime" and one.remedy]
    say("!" * 78)
    say("!!  NOTHING IS CONFINED. This machine lets no sandbox be made:")
    for one in bad:
        say(f"!!  {one.name}: {one.what}")
        say(f"!!  To mend it: {one.remedy}")
    say("!!  The agents run as plain processes of your account; only their trees are private.")
    say("!" * 78)
    say("walls by process: none")
    return "process"


def open_desk(client: carrel.Client, checkout: Path, runtime: str, name: str, prompt: str) -> Desk:
    env = {"GIT_AUTHOR_NAME": name, "GIT_AUTHOR_EMAIL": f"{name}@example.org"}
    env |= {"GIT_COMMITTER_NAME": name, "GIT_COMMITTER_EMAIL": f"{name}@example.org"}
    space = client.create(str(checkout), name=name, runtime=runtime, env=env, agent="scripted")
    say(f"  {space.name}: {space.id}, a tree by {space.info.driver}")
    return Desk(space, prompt)


def run(space: Space, script: str) -> RunResult:
    return space.run(["/bin/sh", "-c", script], timeout_s=COMMAND_S)


def show_work(desks: list[Desk], hub: carrel.Hub) -> bool:
    """Both at the same time. Where nothing confines them they ask before they do anything."""
    answering = threading.Thread(target=say_yes, args=(hub, desks), daemon=True)
    answering.start()
    with ThreadPoolExecutor() as pool:
        turns = list(pool.map(lambda desk: desk.space.send(desk.prompt), desks))
    for desk, turn in zip(desks, turns, strict=True):
        assert turn.result is not None
        problem = turn.result.error
        said = turn.result.final_output if problem is None else f"{problem.code}: {problem.message}"
        say(f"  {desk.space.name} says: {said}")
        for change in changes(desk.space):
            say(f"    {change.kind:8} {change.path}")
    return all(turn.result is not None and turn.result.success for turn in turns)


def say_yes(hub: carrel.Hub, desks: list[Desk]) -> None:
    """As a person would who trusts them."""
    spaces = {desk.space.id: desk.space for desk in desks}
    for message in hub:
        asked = message.payload["payload"]
        if "decision" not in asked:
            space = spaces[message.space]
            turn = space.turns()[0]
            say(f"  {space.name} asks for permission: {asked['name']}. The demo says yes.")
            space.decide(turn, asked["id"], True)


def changes(space: Space) -> list[carrel.client.models.Change]:
    return [one for one in space.changes() if not one.path.startswith(".git/")]


def show_walls(one: Space, two: Space, checkout: Path) -> bool:
    """What one desk sees of the other and of the checkout, when it tries. At the checkout's own
    path it finds its copy."""
    held = True
    (checkout / "later.txt").write_text("written after the copies were made\n")
    tries = {
        "the other's tree": f"cat {two.info.path or checkout.parent}/test_greet.py",
        "the checkout": f"cat {checkout}/later.txt",
        "root's secrets": "cat /etc/shadow",
        "a process of the host": f"cat /proc/{os.getpid()}/environ",
    }
    for what, script in tries.items():
        result = run(one, script)
        held &= result.code != 0
        last = result.stderr.strip().splitlines()[-1:] or [""]
        say(f"    {'refused' if result.code else 'POSSIBLE':8} {what}: {last[0][:90]}")
    run(one, f"echo x > {checkout}/intruder; rm {checkout}/intruder {checkout}/greet.py")
    written = (checkout / "intruder").exists() or not (checkout / "greet.py").exists()
    held &= not written
    say(f"    {'POSSIBLE' if written else 'refused':8} writing in the checkout")
    run(one, "git checkout -q greet.py")
    if not one.info.confined:
        return held
    proof = one.verify()
    refused = sum(attempt.refused for attempt in proof.attempts)
    say(f"    {refused} of {len(proof.attempts)} attempts of the built-in proof were refused")
    return held and proof.holds


def land(client: carrel.Client, space: Space, checkout: Path) -> bool:
    """One agent's work is looked at, lands on a branch, is taken back, and lands again."""
    text = b"".join(space.diff()).decode(errors="replace")
    for line in text.splitlines():
        say(f"    {line}")
    landing = space.land(message="Greet by the time of day")
    say(f"  landed on {landing.branch}, {landing.files} files; the checkout is as it was:")
    say(f"    {git(checkout, 'log', '--oneline', '--graph', 'main', landing.branch)}")
    client.undo(landing.id)
    gone = not git(checkout, "branch", "--list", landing.branch)
    say(f"  taken back: {landing.branch} is {'gone' if gone else 'STILL THERE'}")
    again = space.land(message="Greet by the time of day")
    there = "Good morning" in git(checkout, "show", f"{again.branch}:greet.py")
    say(f"  landed again, for good: git merge {again.branch}")
    return gone and there


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip().replace("\n", "\n    ")


def demo(folder: Path) -> bool:
    checkout = folder / "checkout"
    make_project(checkout)
    with ExitStack() as stack:
        client = stack.enter_context(carrel.Client(data=folder / "data"))
        stack.callback(control.stop, folder / "data")
        title("1. What this machine can do")
        runtime = choose(client)
        title("2. Two spaces on the project, ignored files such as .env included")
        desks = [
            open_desk(client, checkout, runtime, "haiku", HAIKU),
            open_desk(client, checkout, runtime, "tests", TESTS),
        ]
        title("3. Two agents at once")
        hub = carrel.Hub(data=folder / "data", types=["agent.permission"])
        worked = show_work(desks, stack.enter_context(hub))
        title("4. Neither saw the other, nor the checkout")
        held = show_walls(desks[0].space, desks[1].space, checkout)
        title("5. The first one's work is reviewed, lands on a branch, and is taken back")
        landed = land(client, desks[0].space, checkout)
        title("6. Everything else goes")
        for desk in desks:
            removal = desk.space.remove(force=True)
            say(f"  {desk.space.name} is removed, with {removal.changes} changes")
        confined = runtime != "process"
    return worked and landed and (held or not confined)


def left(folder: Path) -> list[str]:
    """Mounts and processes that name the demo's folder."""
    found = [line for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    found = [line for line in found if str(folder) in line]
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(folder).encode() in words:
                found.append(f"process {entry.name}: {words!r}")
    return found


def main() -> int:
    # Other users must be able to pass through: as root, every sandbox has a user of its own.
    with tempfile.TemporaryDirectory(prefix="carrel-demo-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        try:
            held = demo(folder)
        except CarrelError as error:
            say(f"{error.code}: {error}")
            return 1
        remains = left(folder)
    for line in remains:
        say(f"left: {line}")
    say("\nNothing is left." if held and not remains else "\nThe demo failed: see above.")
    return 0 if held and not remains else 1


if __name__ == "__main__":
    sys.exit(main())
