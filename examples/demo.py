"""Two agents side by side on one project: what each did, and the proof that neither saw the other.

    make demo

Needs no key, no network and no container engine. The agents are plain scripts here. Nothing
is left behind: everything happens in a temporary folder.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from carrel.app import App, open_app
from carrel.config import Settings
from carrel.domain.errors import CarrelError, SandboxUnavailable
from carrel.domain.ids import new_id
from carrel.domain.projects import BaseRequest, Project, ProjectKind
from carrel.domain.runtimes import Command, Exit, Runtime, Sandbox, SandboxSpec
from carrel.domain.trees import Base, Change, Tree, TreeDriver, TreeRequest
from carrel.trees.carry import carry_out

COMMAND_S = 30.0
"""A script of the demo takes a fraction of a second."""

HAIKU = """
mkdir -p poems
printf 'An old silent desk\\nan agent sits down to write\\nnobody else sees.\\n' > poems/haiku.txt
sed -i 's/Hello/Good morning/' greet.py
git add -A && git commit -qm 'Write a haiku, greet by the time of day'
echo "haiku: committed $(git log --oneline | wc -l) commits, $(ls | wc -l) entries in my tree"
"""
TESTS = """
cat > test_greet.py <<'END'
from greet import greet
assert greet("Ada") == "Hello, Ada!"
END
python3 test_greet.py
echo "tests: greet works, and greet.py still says: $(grep -o Hello greet.py)"
rm notes.txt
"""


@dataclass
class Desk:
    """One agent's space."""

    name: str
    script: str
    tree: Tree
    sandbox: Sandbox


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


async def choose(app: App) -> tuple[TreeDriver, Runtime]:
    try:
        runtime = await app.runtime()
    except SandboxUnavailable as refusal:
        runtime = await app.runtime("process")
        say("!" * 78)
        say("!!  NOTHING IS CONFINED. This machine lets no sandbox be made:")
        say(f"!!  {refusal.message}")
        say(f"!!  To mend it: {refusal.hint}")
        say("!!  The agents run as plain processes of your account; only their trees are private.")
        say("!" * 78)
    driver = await app.driver("auto" if runtime.name == "bubblewrap" else "copy")
    say(f"trees by {driver.name}, walls by {runtime.name}")
    for gap in runtime.capabilities.uncovered:
        say(f"  not covered: {gap}")
    return driver, runtime


def make_tree(app: App, driver: TreeDriver, base: Base, confines: bool) -> Tree:
    space = new_id("sp")
    folder = app.settings.data / "spaces" / space
    folder.mkdir(mode=0o711)
    owner = app.identities.take(space)
    return driver.create(TreeRequest(space, base, folder, owner))


async def open_desk(
    app: App, runtime: Runtime, driver: TreeDriver, tree: Tree, *named: str
) -> Desk:
    name, script = named
    env = {"GIT_AUTHOR_NAME": name, "GIT_AUTHOR_EMAIL": f"{name}@example.org"}
    env |= {"GIT_COMMITTER_NAME": name, "GIT_COMMITTER_EMAIL": f"{name}@example.org"}
    spec = SandboxSpec(tree.tree_id, tree.folder, tree.path, tree.owner, env=env)
    with driver.mount(tree) as mount:
        sandbox = await runtime.start(spec, mount)
    return Desk(name, script, tree, sandbox)


async def run(runtime: Runtime, driver: TreeDriver, desk: Desk, script: str) -> tuple[Exit, str]:
    command = Command(("/bin/sh", "-c", script), timeout_s=COMMAND_S)
    with driver.mount(desk.tree) as mount:
        started = await runtime.run(desk.sandbox, mount, command)
    ended = await started.wait()
    assert isinstance(started.stdout, Path) and isinstance(started.stderr, Path)
    output = started.stdout.read_text() + started.stderr.read_text()
    started.close()
    return ended, output.strip()


def describe(changes: list[Change]) -> None:
    for change in changes:
        if not change.path.startswith(".git/"):
            say(f"    {change.kind:8} {change.path}")


async def show_walls(
    runtime: Runtime, driver: TreeDriver, one: Desk, two: Desk, checkout: Path
) -> bool:
    """What one desk sees of the other and of the checkout, when it tries."""
    held = True
    tries = {
        "the other's tree": f"cat {two.tree.path}/test_greet.py",
        "the checkout": f"cat {checkout}/.env",
        "write in the checkout": f"echo x > {checkout}/intruder",
        "root's secrets": "cat /etc/shadow",
        "the other's processes": f"cat /proc/{os.getpid()}/environ",
    }
    for what, script in tries.items():
        ended, output = await run(runtime, driver, one, script)
        held &= ended.code != 0
        last = output.splitlines()[-1] if output else ""
        say(f"    {'refused' if ended.code else 'POSSIBLE':8} {what}: {last[:90]}")
    with driver.mount(one.tree) as mount:
        proof = await runtime.verify(one.sandbox, mount)
    if proof.attempts:
        refused = sum(attempt.refused for attempt in proof.attempts)
        say(f"    {refused} of {len(proof.attempts)} attempts of the built-in proof were refused")
    return held and proof.holds


async def demo(folder: Path) -> int:
    checkout = folder / "checkout"
    make_project(checkout)
    async with open_app(Settings(data=folder / "data")) as app:
        title("1. What this machine can do")
        driver, runtime = await choose(app)
        title("2. A base of the project, and two private trees of it")
        request = BaseRequest(Project(ProjectKind.FOLDER, str(checkout)))
        base = await asyncio.to_thread(app.bases.build, request)
        say(f"{base.base_id}: {base.entries} entries, ignored files such as .env included")
        trees = [make_tree(app, driver, base, True) for _ in range(2)]
        desks = [
            await open_desk(app, runtime, driver, trees[0], "haiku", HAIKU),
            await open_desk(app, runtime, driver, trees[1], "tests", TESTS),
        ]
        try:
            title("3. Two agents at once")
            runs = (run(runtime, driver, desk, desk.script) for desk in desks)
            for desk, (ended, output) in zip(desks, await asyncio.gather(*runs), strict=True):
                say(f"  {desk.name} ended with {ended.code}: {output}")
                describe(list(driver.changes(desk.tree)))
            title("4. Neither saw the other, nor the checkout")
            held = await show_walls(runtime, driver, desks[0], desks[1], checkout)
            title("5. The first one's work is kept")
            changes = [one for one in driver.changes(trees[0]) if not one.path.startswith(".git/")]
            carry_out(driver, trees[0], base, checkout, changes)
            subprocess.run(["git", "status", "--short"], cwd=checkout, check=True)
        finally:
            title("6. Everything else goes")
            for desk in desks:
                await runtime.stop(desk.sandbox)
                driver.drop(desk.tree)
                app.identities.give_back(desk.tree.tree_id, desk.tree.owner)
                shutil.rmtree(desk.tree.folder)
            app.bases.remove(base.base_id)
            busy = app.launcher.shutdown()
        left = [
            line
            for line in Path("/proc/self/mountinfo").read_text().splitlines()
            if str(folder) in line
        ]
        say(f"mounts left: {len(left)}, sandboxes left: {busy}")
        return 0 if (held or not runtime.capabilities.confines) and not left and not busy else 1


def main() -> int:
    # Other users must be able to pass through: as root, every sandbox has a user of its own.
    with tempfile.TemporaryDirectory(prefix="carrel-demo-") as folder:
        os.chmod(folder, 0o711)
        try:
            result = asyncio.run(demo(Path(folder)))
        except CarrelError as error:
            say(f"{error.code}: {error}")
            return 1
    say("\nNothing is left." if result == 0 else "\nThe demo failed: see above.")
    return result


if __name__ == "__main__":
    sys.exit(main())
