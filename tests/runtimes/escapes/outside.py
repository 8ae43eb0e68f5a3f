"""Making the same attempts without a sandbox, where that is safe."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.runtimes.escapes.inside import NAMESPACE, ROOT, Escape
from tests.runtimes.escapes.scripts import Outcome, outcomes, script
from tests.runtimes.escapes.world import PYTHON, World

RUN_TIMEOUT_S = 60.0
"""All attempts of one file together take a second or two."""


def run_outside(world: World, module: str, names: Sequence[str], mode: str) -> dict[str, Outcome]:
    """As the sandbox's own host user, as root, or as root of throw-away namespaces."""
    program = script(module, names, world.bare, throw_away=mode == NAMESPACE)
    own_user = mode != ROOT and os.geteuid() == 0
    identity = (world.owner.uid, world.owner.gid, ()) if own_user else (None, None, None)
    done = subprocess.run(
        [PYTHON, "-I", "-c", program],
        env={**os.environ, "CARREL_MARKER": world.targets.marker},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        pass_fds=[world.canary],
        cwd="/",
        timeout=RUN_TIMEOUT_S,
        check=False,
        user=identity[0],
        group=identity[1],
        extra_groups=identity[2],
    )
    assert done.returncode == 0, done.stderr
    return outcomes(done.stdout)


def why_not_at_all(one: Escape, outcome: Outcome) -> str:
    """What the machine does not have, nobody can show there."""
    absent = {"ENOSYS", "EAFNOSUPPORT", "ENODEV"}
    if one.category in ("devices", "cgroups", "sys"):
        absent.add("ENOENT")
    return f"this machine has no such thing: {outcome.detail}" if outcome.detail in absent else ""


def why_not_here(one: Escape) -> str:
    """A setting of this machine that refuses the attempt even without a sandbox, or ""."""
    if one.outside == ROOT and os.geteuid() != 0:
        return "only root can show this"
    if one.setting is None:
        return ""
    name, letting = one.setting
    path = Path("/proc/sys") / name
    value = path.read_text().strip() if path.exists() else letting[0]
    return "" if value in letting else f"this machine has {name} = {value}"
