"""Running code that gave something up first: a filter, Landlock, or both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carrel.linux.landlock import Rules

SOURCE = Path(__file__).resolve().parents[2]
TIMEOUT_S = 60.0
"""A compiler or a git on a busy machine; all else takes a fraction of a second."""

_BEFORE = """
import json, os, sys
from carrel.linux import landlock, seccomp
plan = json.loads(sys.argv[1])
if plan["uid"] is not None:
    os.setgroups([]); os.setresgid(*[plan["gid"]] * 3); os.setresuid(*[plan["uid"]] * 3)
if plan["rules"] is not None:
    landlock.restrict(plan["rules"], plan["abi"])
if plan["program"] is not None:
    seccomp.install(bytes.fromhex(plan["program"]))
"""
_EXECUTE = _BEFORE + "os.execvp(plan['argv'][0], plan['argv'])\n"


@dataclass(frozen=True)
class Confinement:
    program: bytes | None = None
    rules: Rules | None = None
    abi: int | None = None
    uid: int | None = None
    gid: int | None = None
    interpreter: str = sys.executable

    def _plan(self, argv: Sequence[str]) -> str:
        return json.dumps(
            {
                "argv": list(argv),
                "program": None if self.program is None else self.program.hex(),
                "rules": self.rules,
                "abi": self.abi,
                "uid": self.uid,
                "gid": self.gid,
            }
        )

    def run(
        self, argv: Sequence[str], cwd: Path | str = "/", env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """A program, found and executed under the confinement."""
        return self._start([self.interpreter, "-c", _EXECUTE, self._plan(argv)], cwd, env)

    def python(self, code: str, *arguments: str, cwd: Path | str = "/") -> Any:
        """Python code, run under the confinement by the interpreter that took it on; it
        gets `arguments` as `args` and answers by setting `answer`."""
        whole = f"{_BEFORE}\nargs = plan['argv']\n{code}\nprint(json.dumps(answer))\n"
        result = self._start([self.interpreter, "-c", whole, self._plan(arguments)], cwd, None)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout.splitlines()[-1])

    def _start(
        self, argv: list[str], cwd: Path | str, env: Mapping[str, str] | None
    ) -> subprocess.CompletedProcess[str]:
        full = {**os.environ, "PYTHONPATH": str(SOURCE / "src"), "LC_ALL": "C.UTF-8", **(env or {})}
        return subprocess.run(
            argv,
            cwd=cwd,
            env=full,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
