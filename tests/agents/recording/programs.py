"""The pinned programs of real agents, and a desk for one of them: folders, settings and an
environment in which it speaks to a stand-in, and to nothing else."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
MODULES = REPOSITORY / "tools" / "agents" / "node_modules"

_MACHINE = "arm64" if platform.machine() == "aarch64" else "x64"
NODE_FOLDER = MODULES / f"node-linux-{_MACHINE}" / "bin"

CLAUDE = MODULES / "@anthropic-ai" / "claude-code" / "bin" / "claude.exe"
CODEX = MODULES / ".bin" / "codex"
PI = MODULES / ".bin" / "pi"
CLAUDE_ACP = MODULES / ".bin" / "claude-agent-acp"
CODEX_ACP = MODULES / ".bin" / "codex-acp"

CLAUDE_MODEL = "sonnet"
CODEX_MODEL = "gpt-5.5"
PI_MODEL = "standin/small"

ANTHROPIC_KEY = "sk-ant-not-a-key"
OPENAI_KEY = "sk-openai-not-a-key"

_CODEX_CONFIG = """\
model = "{model}"
model_provider = "standin"
check_for_update_on_startup = false

[analytics]
enabled = false

[model_providers.standin]
name = "standin"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "OPENAI_API_KEY"
request_max_retries = 1
stream_max_retries = 1
"""


def missing() -> str | None:
    """Why the programs cannot be run, if they cannot."""
    absent = [path for path in (CLAUDE, CODEX, PI, CLAUDE_ACP, CODEX_ACP) if not path.exists()]
    return f"{absent[0]} is not there: `make setup` installs it with npm" if absent else None


@dataclass(frozen=True)
class Desk:
    """Folders below one that is removed at the end: the project, and all state of programs."""

    root: Path
    url: str
    """The stand-in's."""

    @property
    def project(self) -> Path:
        return self.root / "project"

    def make(self) -> Desk:
        for name in ("project", "home", "tmp", "claude", "codex", "pi"):
            (self.root / name).mkdir(parents=True)
        config = _CODEX_CONFIG.format(model=CODEX_MODEL, url=self.url)
        (self.root / "codex" / "config.toml").write_text(config)
        (self.root / "pi" / "models.json").write_text(json.dumps(self._pi_models()))
        retry = {"enabled": True, "maxRetries": 1, "baseDelayMs": 100}
        (self.root / "pi" / "settings.json").write_text(json.dumps({"retry": retry}))
        return self

    def _pi_models(self) -> Mapping[str, object]:
        models = [{"id": PI_MODEL.partition("/")[2]}, {"id": "no-such-model"}]
        standin = {
            "baseUrl": f"{self.url}/v1",
            "api": "openai-completions",
            "apiKey": "$OPENAI_API_KEY",
            "models": models,
        }
        return {"providers": {"standin": standin}}

    def environment(self) -> dict[str, str]:
        """One for all of them; nothing of the machine's but its programs. Codex refuses a
        folder below the temporary one, which hence is another."""
        return {
            "HOME": str(self.root / "home"),
            "TMPDIR": str(self.root / "tmp"),
            "PATH": f"{NODE_FOLDER}:/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            **self._anthropic(),
            **self._openai(),
        }

    def _anthropic(self) -> dict[str, str]:
        return {
            "ANTHROPIC_BASE_URL": self.url,
            "ANTHROPIC_API_KEY": ANTHROPIC_KEY,
            "CLAUDE_CONFIG_DIR": str(self.root / "claude"),
            "CLAUDE_CODE_EXECUTABLE": str(CLAUDE),
            "CLAUDE_CODE_MAX_RETRIES": "1",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_ERROR_REPORTING": "1",
            "DISABLE_TELEMETRY": "1",
            # Root may skip permissions only so.
            "IS_SANDBOX": "1",
        }

    def _openai(self) -> dict[str, str]:
        return {
            "OPENAI_API_KEY": OPENAI_KEY,
            "CODEX_HOME": str(self.root / "codex"),
            "PI_CODING_AGENT_DIR": str(self.root / "pi"),
            "PI_OFFLINE": "1",
        }
