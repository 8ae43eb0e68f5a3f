"""The import rules of the rooms hold, and would be noticed if they did not."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_S = 60.0
"""Reading the whole package takes about a second; the rest is for a loaded machine."""

OWN_ROOMS = {
    "domain": {"domain"},
    "linux": {"linux"},
    "launcher": {"launcher", "linux"},
    "trees": {"trees", "domain", "linux"},
    "review": {"review", "trees", "domain", "linux"},
    "runtimes": {"runtimes", "domain", "linux"},
    "config": {"config", "domain"},
    "store": {"store", "domain"},
    "cleanup": {"cleanup", "domain", "linux"},
    "environments": {"environments", "domain", "linux"},
    "lifecycle": {"lifecycle", "domain"},
    "api": {"api", "domain"},
    "service": {"api", "service", "lifecycle", "domain"},
    "hub": {"api", "hub", "domain"},
    "interfaces": {"api", "interfaces", "service", "hub", "lifecycle", "domain"},
    "mcp": {"api", "mcp", "client", "domain", "linux"},
    "agents": {"agents", "domain"},
    "instances": {"domain", "instances", "linux"},
    "ports": {"domain", "ports"},
    "ssh": {"domain", "ssh"},
}
LIBRARIES: dict[str, set[str]] = {
    "api": {"msgspec"},
    "trees": {"msgspec", "pathspec", "zstandard"},
    "runtimes": {"msgspec", "psutil"},
    "config": {"msgspec"},
    "store": {"msgspec"},
    "hub": {"msgspec"},
    "agents": {"acp", "anyio", "claude_agent_sdk", "mcp", "msgspec"},
    "environments": {"yaml"},
    "instances": {"httptools", "msgspec"},
    # The listener's process alone has it: a rule of import-linter.
    "ssh": {"asyncssh", "uvloop"},
    "mcp": {"anyio", "mcp", "mcp_types", "msgspec", "psutil", "starlette", "uvicorn"},
    "interfaces": {
        "httptools",
        "msgspec",
        "starlette",
        "typing_extensions",
        "uvicorn",
        "websockets",
    },
}

INSIDE = "carrel.instances.inside."
SERVING = {"anyio", "mcp", "mcp_types", "starlette", "uvicorn"}
"""What the programs there use, which run beside servers in their sandboxes."""

CLIENT = "carrel.launcher.client"
"""The daemon's side of the launcher, which speaks the domain's language."""

LENT = ("carrel.mcp.http", "carrel.interfaces.http.connections")
"""`carrel mcp --http` bounds its connections as the daemon does."""

OFFENCES = {
    "domain": ["carrel.linux", "click", "msgspec"],
    "linux": ["carrel.domain", "psutil"],
    "launcher": ["carrel.domain", "carrel.trees", "msgspec"],
    "trees": ["carrel.runtimes", "carrel.launcher", "carrel.config", "carrel.cli", "click"],
    "review": ["carrel.runtimes", "carrel.store", "carrel.service", "click"],
    "runtimes": ["carrel.trees", "carrel.launcher", "carrel.app", "zstandard"],
    "store": ["carrel.trees", "carrel.service", "click"],
    "api": ["carrel.service", "carrel.hub", "carrel.linux"],
    "service": ["carrel.review", "carrel.store", "carrel.trees", "carrel.runtimes", "starlette"],
    "interfaces": ["carrel.app", "carrel.store", "carrel.trees"],
    "cleanup": ["carrel.service", "carrel.trees"],
    "lifecycle": ["carrel.service", "carrel.store"],
    "mcp": ["carrel.cli", "carrel.app", "click"],
}


def _lint(source: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            Path(sys.executable).with_name("lint-imports"),
            "--no-cache",
            "--config",
            ROOT / "pyproject.toml",
        ],
        env={**os.environ, "PYTHONPATH": str(source), "NO_COLOR": "1", "COLUMNS": "200"},
        cwd=source,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )


def test_the_contracts_hold() -> None:
    result = _lint(ROOT / "src")
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.fixture(scope="module")
def offended(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What import-linter says of a copy in which every room breaks its rules."""
    copy = tmp_path_factory.mktemp("offences")
    shutil.copytree(ROOT / "src" / "carrel", copy / "carrel")
    (copy / "carrel" / "attic.py").touch()
    for room, targets in OFFENCES.items():
        lines = "".join(f"import {target}\n" for target in targets)
        (copy / "carrel" / room / "offence.py").write_text(lines)
    result = _lint(copy)
    assert result.returncode == 1, result.stdout + result.stderr
    return result.stdout


@pytest.mark.parametrize(
    ("room", "target"), [(room, target) for room in OFFENCES for target in OFFENCES[room]]
)
def test_a_broken_rule_is_noticed(offended: str, room: str, target: str) -> None:
    assert f"carrel.{room}.offence -> {target} " in offended


def test_a_room_without_a_place_is_noticed(offended: str) -> None:
    assert "attic" in offended


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(
        "carrel",
        include_external_packages=True,
        exclude_type_checking_imports=True,
        cache_dir=None,
    )


def test_the_mcp_server_is_imported_by_its_verb_alone(graph: grimp.ImportGraph) -> None:
    """Its library takes a second to import."""
    room = {"carrel.mcp"} | graph.find_descendants("carrel.mcp")
    importers = set().union(*map(graph.find_modules_that_directly_import, room))
    assert importers - room == {"carrel.cli.verbs.mcp"}
    # The scripted agent asks it as a client, in its own process.
    asking = {"carrel.agents.frontends.scripted_driver"}
    # A program of its own, in the sandbox of a server.
    asking.add(bridge := f"{INSIDE}bridge_sessions")
    assert graph.find_modules_that_directly_import(bridge) == set()
    for library in ("mcp", "mcp_types"):
        assert graph.find_modules_that_directly_import(library) <= room | asking


def test_each_room_imports_only_what_it_may(graph: grimp.ImportGraph) -> None:
    """The contracts forbid the libraries of today; this allows the ones that may be."""
    stray = []
    for room, own in OWN_ROOMS.items():
        allowed = {"carrel"} | {f"carrel.{name}" for name in own} | LIBRARIES.get(room, set())
        allowed |= sys.stdlib_module_names
        for module in {f"carrel.{room}"} | graph.find_descendants(f"carrel.{room}"):
            for target in graph.find_modules_directly_imported_by(module):
                depth = 2 if target.startswith("carrel.") else 1
                spoken = module == CLIENT and target.startswith("carrel.domain.")
                spoken |= module.startswith(INSIDE) and target in SERVING
                spoken |= (module, target) == LENT
                if ".".join(target.split(".")[:depth]) not in allowed and not spoken:
                    stray.append(f"{module} -> {target}")
    assert stray == []


def test_class_names_are_unique() -> None:
    """A name means one thing in the whole house. What is generated repeats its source."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "src" / "carrel").rglob("*.py")):
        text = path.read_text()
        if "tools/unasync.py" in text[:500]:
            continue
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {name: places for name, places in found.items() if len(places) > 1} == {}


INTERPRETERS = ("sys.executable", "_python", "interpreter", "['python']")
"""What the words of a command begin with that starts Python on the host."""


def test_python_never_imports_from_the_current_folder() -> None:
    """Which may be anybody's project: each place that starts it says so (`-P`), or starts it
    without any of the person's own folders too (`-I`)."""
    stray, found = [], 0
    for path in sorted((ROOT / "src" / "carrel").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.List | ast.Tuple) or not isinstance(node.ctx, ast.Load):
                continue
            program, *rest = map(ast.unparse, node.elts or [node])
            if rest and program.endswith(INTERPRETERS):
                found += 1
                if rest[0] not in ("'-P'", "'-I'"):
                    stray.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert stray == [] and found > 5


def test_nobody_waits_in_a_way_that_ends_at_1024_descriptors() -> None:
    """The daemon has some for each space and each connection: see `is_readable`."""
    paths = sorted((ROOT / "src" / "carrel").rglob("*.py"))
    ends = re.compile(r"\bselect\.select\(|from select import|SelectSelector")
    assert [str(path) for path in paths if ends.search(path.read_text())] == []
    assert any("select.poll(" in path.read_text() for path in paths)
