"""A program that chooses a runtime and says which, for tests that change the machine under it.

python -m tests.runtimes.choosing DATA
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from carrel.domain.errors import SandboxUnavailable
from carrel.launcher.client import Launcher
from carrel.runtimes.proof import choose_runtime
from tests.conformance.runtime_rig import Rig


async def main(data: Path) -> dict[str, object]:
    launcher = Launcher(data)
    try:
        names = ("process", "bubblewrap", "landlock")
        candidates = [Rig(data, name, launcher).runtime for name in names]
        try:
            runtime, seen = await choose_runtime(candidates)
        except SandboxUnavailable as refusal:
            return {"refused": refusal.message, "hint": refusal.hint, "code": refusal.code}
        return {
            "chosen": runtime.name,
            "seen": [[name, found.available, found.reason] for name, found in seen],
            "uncovered": runtime.capabilities.uncovered,
        }
    finally:
        launcher.shutdown(force=True)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(Path(sys.argv[1])))))
