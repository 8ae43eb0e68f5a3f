"""No operation of the contract and no code of an error is without a program in this folder that
calls or provokes it. Both are looked for in what the programs say, so that a new row of
`api/routes.py` and a new error ask for a check at once."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from carrel.api.routes import OPERATIONS, Operation
from carrel.domain.errors import declared
from carrel.interfaces.http.answers import STATUS

HERE = Path(__file__)
TESTS = HERE.parents[1]
METHODS = ("get", "post", "put", "patch", "delete")
ROW = re.compile(rf"({'|'.join(METHODS).upper()}) (/.*)")
"""As a table of calls names one."""
ANY = "{}"
"""Stands for what is only known when the program runs."""

NOT_ASKED = {
    "agents.install": "It fetches a program from a registry. `test_errors` has it refused.",
    "images.pull": "It asks a registry. `test_errors` has it refused.",
}
"""Operations whose success no program here can see, and why."""

ELSEWHERE = {
    "daemon_running": "daemon/test_control.py",
    "engine_timeout": "environments/engines/test_building.py",
    "git_timeout": "trees/git/test_process.py",
    "insufficient_disk": "faults/test_full_disk.py",
    "landing_half_done": "faults/test_full_disk_in_review.py",
    "launcher_unavailable": "faults/test_machine_launcher.py",
    "limits_unavailable": "runtimes/test_cgroups.py",
    "project_changed": "trees/bases/test_bad_projects.py",
    "request_timeout": "interfaces/http/test_connections.py",
    "slow_reader": "hub/test_publishing.py",
    "store_busy": "faults/test_machine_records.py",
    "store_damaged": "faults/test_machine_records.py",
    "store_read_only": "store/test_faults.py",
    "store_too_new": "faults/test_machine_records.py",
    "tree_damaged": "daemon/test_images.py",
}
"""Codes that take more than a client to provoke, and the test that has what it takes."""

NEVER = {
    "base_in_use": "Clean-up goes on to the next base.",
    "container_gone": "A container ends between two steps of a start, and is made anew.",
    "instance_error": "What all errors of instances are.",
    "internal": "What nobody foresaw; tests/interfaces/http/test_parts.py has the answer's form.",
    "isolation_unproven": "A sandbox would have to be broken.",
    "sandbox_not_found": "The service removes a sandbox once.",
    "tree_exists": "The service makes one tree for a space.",
    "tree_not_found": "The service removes a tree once.",
    "warm_unavailable": "The server is started cold instead.",
}
"""Codes that no client can be made to be told, and why."""


@cache
def programs() -> dict[str, ast.Module]:
    return {
        path.name: ast.parse(path.read_text()) for path in HERE.parent.glob("*.py") if path != HERE
    }


def _path(node: ast.expr, module: ast.Module) -> str:
    """What it is as far as it can be read."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(
                _path(one.value if isinstance(one, ast.FormattedValue) else one, module)
                if isinstance(one, ast.Constant) or _names_a_constant(one, module)
                else ANY
                for one in parts
            )
        case ast.Name(id=name) if name in _constants(module):
            return _constants(module)[name]
        case ast.Call(func=ast.Name(id="at"), args=[_, *rest]):
            before = next((_returned(one, module) for one in module.body if _is_at(one)), ANY)
            before = before if before == ANY else before.removesuffix(ANY)
            return before + (_path(rest[0], module) if rest else "")
    return ANY


def _is_at(node: ast.stmt) -> bool:
    """Of a module that names the path of a thing by a function of one line."""
    return isinstance(node, ast.FunctionDef) and node.name == "at"


def _returned(node: ast.stmt, module: ast.Module) -> str:
    assert isinstance(node, ast.FunctionDef) and isinstance(node.body[0], ast.Return)
    return _path(node.body[0].value or ast.Constant(""), module)


def _constants(module: ast.Module) -> dict[str, str]:
    return {
        one.targets[0].id: one.value.value
        for one in module.body
        if isinstance(one, ast.Assign)
        and isinstance(one.targets[0], ast.Name)
        and isinstance(one.value, ast.Constant)
        and isinstance(one.value.value, str)
    }


def _names_a_constant(node: ast.expr, module: ast.Module) -> bool:
    return (
        isinstance(node, ast.FormattedValue)
        and isinstance(node.value, ast.Name)
        and node.value.id in _constants(module)
    )


def _calls(module: ast.Module) -> Iterator[tuple[str, str]]:
    """Methods and paths."""
    for node in ast.walk(module):
        text = _path(node, module) if isinstance(node, ast.Constant | ast.JoinedStr) else ""
        if found := ROW.fullmatch(text):
            yield found[1], found[2]
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        name, args = node.func.attr, node.args
        if name in METHODS and args:
            yield name.upper(), _path(args[0], module)
        if name in ("stream", "request") and len(args) > 1 and isinstance(args[0], ast.Constant):
            yield str(args[0].value), _path(args[1], module)


def _known(row: Operation, path: str) -> int:
    """How many words of its path are said; -1: another one is meant. What a path begins with and
    is not known is the path of a thing."""
    words, wanted = path.partition("?")[0].split("/"), row.path.split("/")
    if words[0] == ANY:
        words = words[1:]
        before = wanted[: -len(words)] if words else []
        wanted = wanted[-len(words) :] if any("{" in one for one in before) else []
    if not words or len(words) != len(wanted):
        return -1
    pairs = list(zip(words, wanted, strict=True))
    if not all("{" in there or there == here for here, there in pairs):
        return -1
    return sum(here == there for here, there in pairs)


@cache
def called() -> frozenset[str]:
    """The operations that are meant, where that is certain."""
    found = set()
    for name, module in programs().items():
        # What is refused there is not what it is for.
        for method, path in () if name == "test_errors.py" else _calls(module):
            rows = [row for row in OPERATIONS if row.method == method]
            most = max(_known(row, path) for row in rows)
            meant = [row.name for row in rows if _known(row, path) == most]
            if most > 0 and len(meant) == 1:
                found.add(meant[0])
    return frozenset(found)


@pytest.mark.parametrize("row", OPERATIONS, ids=lambda row: row.name)
def test_each_operation_is_called(row: Operation) -> None:
    """By plain HTTP."""
    if row.name in NOT_ASKED:
        assert NOT_ASKED[row.name] and row.name not in called()
    else:
        assert row.name in called(), f"no program in tests/promises asks: {row.method} {row.path}"


@cache
def provoked() -> frozenset[str]:
    """Codes that programs name, by themselves or by the class that Python has for them."""
    classes = {error.__name__: code for code, error in declared().items()}
    found = set()
    for module in programs().values():
        for node in ast.walk(module):
            if isinstance(node, ast.Constant) and node.value in STATUS:
                found.add(str(node.value))
            if isinstance(node, ast.Attribute) and node.attr in classes:
                found.add(classes[node.attr])
    return frozenset(found)


@pytest.mark.parametrize("code", STATUS)
def test_each_code_is_provoked(code: str) -> None:
    if code in NEVER:
        assert NEVER[code] and code not in provoked()
    elif code in ELSEWHERE:
        name = declared()[code].__name__ if code in declared() else code
        there = (TESTS / ELSEWHERE[code]).read_text()
        assert code not in provoked() and re.search(rf"\b({code}|{name})\b", there)
    else:
        assert code in provoked(), f"no program in tests/promises is told {code}"


def _documented(page: str) -> set[str]:
    """The codes in its tables of codes, and in its list of them."""
    tables = re.findall(r"^\| code .*\n\|[-| ]+\n((?:\|.*\n)+)", page, re.M)
    words = [row.split("|")[1] for table in tables for row in table.splitlines()]
    words += re.findall(r"^## Codes\n\n(.*?)\n\n", page, re.M | re.S)
    return {code for one in words for code in re.findall(r"`([a-z_]+)`", one)} - DETAILS


DETAILS = {"question_id", "retry_after_ms"}
"""What comes with a code, and is named beside it."""


def test_codes_on_the_pages_are_real() -> None:
    pages = {page.name: page.read_text() for page in (TESTS.parent / "docs").rglob("*.md")}
    found = {name: _documented(page) for name, page in pages.items()}
    assert sum(map(len, found.values())) > 80
    assert not {name: codes - {*STATUS} for name, codes in found.items() if codes - {*STATUS}}
