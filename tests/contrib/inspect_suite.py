"""Run by test_inspect.py, in the environment of the suites: Inspect's checks of a sandbox, and the
example of our README."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from carrel_inspect import CarrelConfig, CarrelSandboxEnvironment
from inspect_ai import eval_async
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.util import (
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentSpec,
    SandboxUserUnsupportedError,
)
from inspect_ai.util._sandbox.limits import override_max_exec_output_size
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

import carrel

README = Path(__file__).parents[2] / "contrib" / "inspect" / "README.md"
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_env() -> AsyncIterator[SandboxEnvironment]:
    made = await CarrelSandboxEnvironment.sample_init("checks", None, {})
    yield made["default"]
    await CarrelSandboxEnvironment.sample_cleanup("checks", None, made, False)


@pytest_asyncio.fixture(loop_scope="module")
async def sandbox_env(shared_env: SandboxEnvironment) -> SandboxEnvironment:
    return shared_env


async def test_the_example_of_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry point is found, files arrive, the tool runs in the space, the space goes."""
    example = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert example
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "example"}
    exec(example[1], names)
    command = "awk '{s += $1} END {print s}' numbers.txt > sum.txt"
    said = ModelOutput.for_tool_call("mockllm/model", "bash", {"command": command})
    done = ModelOutput.from_content("mockllm/model", "Done.")
    for output in (said, done):
        # Else Inspect counts words by a table that it fetches.
        output.usage = ModelUsage()
    model = get_model("mockllm/model", custom_outputs=[said, done])
    (log,) = await eval_async(names["addition"](), model=model, log_dir=str(tmp_path / "logs"))
    assert log.status == "success", log.error
    assert log.results.scores[0].metrics["accuracy"].value == 1.0
    async with carrel.AsyncClient() as client:
        left = [one.id async for one in client.spaces(labels={"made-by": "inspect"})]
    assert len(left) <= 1, "only the one that the checks share"


async def test_a_project_and_what_was_left(tmp_path: Path) -> None:
    (tmp_path / "note").write_text("of the project\n")
    config = CarrelConfig(project=str(tmp_path), network="none", env={"COLOUR": "blue"})
    spec = SandboxEnvironmentSpec("carrel", config)
    again = SandboxEnvironmentSpec.model_validate_json(spec.model_dump_json())
    assert again.config == config
    made = await CarrelSandboxEnvironment.sample_init("one", config, {})
    one = made["default"].as_type(CarrelSandboxEnvironment)
    assert await one.read_file("note") == "of the project\n"
    assert (await one.exec(["sh", "-c", "echo $COLOUR"])).stdout == "blue\n"
    await CarrelSandboxEnvironment.cli_cleanup(one.space.id)
    with pytest.raises(carrel.errors.SpaceNotFound):
        await one.space.run(["true"])
    await CarrelSandboxEnvironment.sample_cleanup("one", config, made, True)


async def test_bounds(sandbox_env: SandboxEnvironment) -> None:
    """Of what the checks leave to the provider: nothing is cut without a word."""
    with override_max_exec_output_size(1024), pytest.raises(OutputLimitExceededError):
        await sandbox_env.exec(["head", "-c", "2048", "/dev/zero"])
    with pytest.raises(OutputLimitExceededError):
        await sandbox_env.read_file("/dev/zero")
    missing = await sandbox_env.exec(["no-such-program"])
    assert missing.returncode == 127 and "no-such-program" in missing.stderr
    long = await sandbox_env.exec(["true", "x" * (1 << 20)])
    assert long.returncode == 126 and "standard input" in long.stderr
    with pytest.raises(SandboxUserUnsupportedError):
        await sandbox_env.connection(user="root")
    assert (await sandbox_env.connection()).command.startswith("carrel shell ")
