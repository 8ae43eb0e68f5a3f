"""One machine for all tests here. They take minutes and need root and qemu, so only `make test-vm`
runs them: it sets CARREL_VM."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest

from tests.vm.machine import TEST_S, Machine, machine

collect_ignore_glob = [] if os.environ.get("CARREL_VM") else ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/vm/" in str(item.path):
            item.add_marker(pytest.mark.timeout(TEST_S))
            item.add_marker(pytest.mark.xdist_group("vm"))


_TOLD: list[str] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in _TOLD:
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def needs_qemu() -> None:
    if os.geteuid() != 0 or not shutil.which("qemu-system-x86_64"):
        pytest.skip("needs root and qemu")


@pytest.fixture(scope="session")
def vm(needs_qemu: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with machine(tmp_path_factory.mktemp("vm")) as started:
        yield started
        _TOLD.extend(started.told)
