"""What tests of all rooms share."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.accounts import Account, ordinary_account
from tests.etc import one_etc
from tests.folders import remove_folder
from tests.launchers import end_nursery


def pytest_configure(config: pytest.Config) -> None:
    # Known without xdist too.
    config.addinivalue_line("markers", "xdist_group(name): tests that one worker runs")
    config.addinivalue_line("markers", "idle_time: on a loop of `tests.idle_time`")
    # What is loaded now stays to the end.
    gc.disable()


def pytest_collection_finish() -> None:
    """Hundreds of thousands of objects that no collection looks at again, nor copies in a
    process that a test forks."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def _template() -> Iterator[Path]:
    """Repositories have no examples of hooks: fifteen files each, which every copy of one
    would have too. Not in pytest's own folder, which a user without a name cannot have."""
    with tempfile.TemporaryDirectory(prefix="carrel-template-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        for part in ("hooks", "info"):
            (folder / part).mkdir()
        yield folder


@pytest.fixture(scope="session", autouse=True)
def _own_environment(_template: Path) -> Iterator[None]:
    """Keeps a person's git configuration and Carrel settings, and the variables of a git
    hook that may have started the tests, out of them."""
    identity = {"NAME": "Tester", "EMAIL": "tester@example.org"}
    with pytest.MonkeyPatch.context() as patch:
        for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "CARREL_DATA"):
            patch.delenv(name, raising=False)
        for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
            patch.setenv(name, "/dev/null")
        patch.setenv("GIT_TEMPLATE_DIR", str(_template))
        for role in ("AUTHOR", "COMMITTER"):
            for key, value in identity.items():
                patch.setenv(f"GIT_{role}_{key}", value)
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_etc() -> Iterator[None]:
    with one_etc():
        yield


@pytest.fixture(scope="session", autouse=True)
def _nursery_ends() -> Iterator[None]:
    yield
    end_nursery()


@pytest.fixture
def data() -> Iterator[Path]:
    """A data folder that other users can pass through, which pytest's own are not."""
    folder = Path(tempfile.mkdtemp(prefix="carrel-"))
    try:
        folder.chmod(0o711)
        yield folder
    finally:
        remove_folder(folder)


@pytest.fixture(scope="session")
def ordinary_user() -> Account:
    """An unprivileged user; see `tests.accounts.run_as`."""
    return ordinary_account()
