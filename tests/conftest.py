"""What tests of all rooms share."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.accounts import Account, ordinary_account
from tests.etc import one_etc
from tests.folders import remove_folder, spread, unmount_below
from tests.launchers import end_nursery
from tests.load.patience import SLOWER
from tests.sampling import EXHAUSTIVE


def pytest_configure(config: pytest.Config) -> None:
    # Known without xdist too.
    config.addinivalue_line("markers", "xdist_group(name): tests that one worker runs")
    config.addinivalue_line("markers", "idle_time: on a loop of `tests.idle_time`")
    config.addinivalue_line("markers", "exhaustive: no part of the sample of tests.sampling")
    # How long an example takes to be made says how busy the machine is.
    settings.register_profile("carrel", suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("carrel")
    # What is loaded now stays to the end.
    gc.disable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long begins first: at the end, one worker would be alone with it. What is only in
    the whole set is left out of a sample."""
    if not EXHAUSTIVE:
        items[:] = [item for item in items if item.get_closest_marker("exhaustive") is None]
    items.sort(key=lambda item: not _takes_long(item))
    for item in items:
        _name_group(item)
        if SLOWER > 1:
            mark = item.get_closest_marker("timeout")
            usual = float(item.config.getini("timeout"))
            longer = pytest.mark.timeout((mark.args[0] if mark else usual) * SLOWER)
            item.add_marker(longer, append=False)


def _takes_long(item: pytest.Item) -> bool:
    """It is given more time than usual, or may run whole files again as another user."""
    more_time = item.get_closest_marker("timeout") is not None
    return more_time or "ordinary_user" in getattr(item, "fixturenames", ())


def _name_group(item: pytest.Item) -> None:
    """The scheduler of xdist reads the group at the end of a test's id, where the worker has
    written it. From pytest 9.2 on the id is elsewhere than xdist 3.8 writes it, and every test
    would go to any worker."""
    mark = item.get_closest_marker("xdist_group")
    if mark is None or not getattr(item.config.option, "loadgroup", False):
        return
    if not item.nodeid.endswith(group := f"@{mark.args[0]}"):
        item._id = item.id.parse(item.nodeid + group)


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


@pytest.fixture(scope="session")
def _home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="carrel-home-") as name:
        yield Path(name)


@pytest.fixture(scope="session", autouse=True)
def _own_environment(_template: Path, _home: Path) -> Iterator[None]:
    """Keeps a person's git configuration, Carrel settings and home, and the variables of a git
    hook that may have started the tests, out of them."""
    identity = {"NAME": "Tester", "EMAIL": "tester@example.org"}
    with pytest.MonkeyPatch.context() as patch:
        for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "CARREL_DATA"):
            patch.delenv(name, raising=False)
        for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
            patch.setenv(name, "/dev/null")
        patch.setenv("GIT_TEMPLATE_DIR", str(_template))
        patch.setenv("HOME", str(_home))
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


@pytest.fixture(scope="session", autouse=True)
def _nothing_stays_mounted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """What a daemon that did not answer left: pytest could not remove its folders, neither
    now nor after a later run. A user without a name has such a folder only where one was given."""
    if os.geteuid() != 0 and request.config.getoption("basetemp") is None:
        yield
        return
    base = tmp_path_factory.getbasetemp()
    spread(base)
    yield
    if os.geteuid() == 0:
        unmount_below(base)


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
