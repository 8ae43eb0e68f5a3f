"""The program as most people run it: what they see, review, answer, copy and set, without root."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.accounts import Account
from tests.sampling import EXHAUSTIVE, beyond
from tests.trees.again import run_again

TIMEOUT_S = 280.0
"""The slowest has real agents, and the machine may be busy."""
FILES = (
    *("test_cp.py", *beyond("test_views.py", "test_ports.py")),
    *beyond("test_transcript.py", "test_permit.py", "test_errors.py", "test_agents.py"),
    *beyond("test_request.py", "test_config.py", "test_spaces.py", "test_hub.py"),
)
SAMPLE = (
    "cli/test_agents.py::test_an_agent_on_the_callers_path",
    "cli/test_agents.py::test_what_an_agent_is_given",
    "cli/test_agents.py::test_keys",
    "cli/test_config.py::test_a_setting_is_changed_and_nothing_else",
    "cli/test_errors.py::test_errors_of_the_daemon",
    "cli/test_hub.py::test_scripts_in_a_space",
    "cli/test_permit.py::test_seen_and_permitted",
    "cli/test_ports.py::test_two_spaces_have_the_same_port_here_at_once",
    "cli/test_ports.py::test_processes_of_spaces_do_not_get_in",
    "cli/test_ports.py::test_it_is_told_what_is_at_work",
    "cli/test_request.py::test_what_its_workspace_has",
    "cli/test_spaces.py::test_a_project_whose_git_tidies_up_meanwhile",
    "cli/test_spaces.py::test_a_script_whose_interpreter_is_missing",
    "cli/test_spaces.py::test_lists_are_for_people_and_programs",
    "cli/test_spaces.py::test_stop_start_update",
    "cli/test_spaces.py::test_variables_that_look_like_keys_are_not_shown",
    "cli/test_spaces.py::test_what_a_space_sees_of_the_machine",
    "cli/test_transcript.py::test_a_turn_is_read_by_all_verbs",
    "agents/test_imports.py::test_claude_code_is_mine",
    "conformance/test_terminals.py::test_another_prefix",
    "requests/test_docs.py::test_websockets",
)
"""Of files that are run whole as root, or in `make soak`, what goes other ways without root."""


@pytest.mark.timeout(TIMEOUT_S + 20)
@pytest.mark.skipif(os.geteuid() != 0, reason="is already an ordinary user's run")
@pytest.mark.parametrize("file", FILES)
def test_without_root(ordinary_user: Account, data: Path, file: str) -> None:
    run_again(str(Path(__file__).with_name(file)), ordinary_user, data, timeout_s=TIMEOUT_S)


@pytest.mark.timeout(TIMEOUT_S + 20)
@pytest.mark.skipif(os.geteuid() != 0, reason="is already an ordinary user's run")
@pytest.mark.skipif(EXHAUSTIVE, reason="the whole files are run")
def test_some_of_each_without_root(ordinary_user: Account, data: Path) -> None:
    """In one process, so that they share a daemon."""
    first, *others = (str(Path(__file__).parent.parent / one) for one in SAMPLE)
    run_again(first, ordinary_user, data, *others, timeout_s=TIMEOUT_S)
