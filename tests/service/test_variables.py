"""Which variables go together with a key that is kept: the rule alone."""

from __future__ import annotations

import pytest

from carrel.domain.errors import MessageInvalid, VariableRefused
from carrel.domain.keys import HIDDEN, masked
from carrel.service import credentials

NAMED = {"anthropic": ["https://gate.example/anthropic", "http://127.0.0.1:8080"]}

REDIRECTING = [
    "ANTHROPIC_BASE_URL",
    "anthropic_base_url",
    "ANTHROPIC_BEDROCK_BASE_URL",
    "ANTHROPIC_VERTEX_BASE_URL",
    "ANTHROPIC_FOUNDRY_BASE_URL",
    "CLAUDE_CODE_API_BASE_URL",
    "OPENAI_BASE_URL",
    "OPENAI_API_BASE",
    "CODEX_BASE_URL",
    "AZURE_OPENAI_ENDPOINT",
    "GOOGLE_GEMINI_BASE_URL",
    "AWS_ENDPOINT_URL_BEDROCK",
    "OLLAMA_HOST",
]
LOADING = [
    "ANTHROPIC_CUSTOM_HEADERS",
    "CLAUDE_CODE_USE_BEDROCK",
    "HTTPS_PROXY",
    "https_proxy",
    "ALL_PROXY",
    "NO_PROXY",
    "NODE_OPTIONS",
    "NODE_EXTRA_CA_CERTS",
    "NODE_PATH",
    "NODE_TLS_REJECT_UNAUTHORIZED",
    "BUN_OPTIONS",
    "LD_PRELOAD",
    "LD_AUDIT",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "PYTHONSTARTUP",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "SSLKEYLOGFILE",
    "OPENSSL_CONF",
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "BASH_ENV",
    "ENV",
    "PERL5OPT",
    "RUBYOPT",
    "GIT_SSH_COMMAND",
    "GIT_CONFIG_COUNT",
    "PATH",
    "HOME",
    "SHELL",
    "CLAUDE_CONFIG_DIR",
    "CODEX_HOME",
    "XDG_CONFIG_HOME",
    "CLAUDE_ENV_FILE",
    "CLAUDE_CODE_SHELL_PREFIX",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "GCONV_PATH",
    "LOCPATH",
    "HOSTALIASES",
    "SHELLOPTS",
    "PS4",
    "Lang",
    "lc_all",
    "LC_",
    "LC_x",
    "TERMINFO",
    "PI_CODING_AGENT_DIR",
    "GEMINI_CLI_HOME",
    "CARREL_ACP_COMMAND",
    "IS_SANDBOX",
]


@pytest.mark.parametrize("name", [*REDIRECTING, *LOADING])
def test_what_a_guest_may_not_say(name: str) -> None:
    for value in ("http://attacker.example", "/workspace/evil", "1", "--require=/workspace/x.js"):
        with pytest.raises(VariableRefused) as refused:
            credentials.check({name: value}, NAMED, owner=False)
        assert name in refused.value.message and refused.value.hint
        assert value not in refused.value.message + refused.value.hint


def test_what_a_guest_may_say() -> None:
    env = {"LANG": "en_US.UTF-8", "LC_ALL": "C", "TZ": "Europe/Berlin", "NO_COLOR": "1", "CI": ""}
    credentials.check(env, NAMED, owner=False)
    for name, value in (("LANG", "/workspace/evil"), ("TZ", ":/workspace/x"), ("TZ", "../x")):
        with pytest.raises(VariableRefused):
            credentials.check({name: value}, NAMED, owner=False)


@pytest.mark.parametrize("owner", [True, False])
@pytest.mark.parametrize("name", REDIRECTING)
def test_a_key_goes_where_its_owner_said(name: str, owner: bool) -> None:
    for url in ("https://gate.example/anthropic", "HTTP://127.0.0.1:8080".lower()):
        credentials.check({name: url}, NAMED, owner=owner)
        credentials.check({name: f"{url}/v1"}, NAMED, owner=owner)
    for url in (
        "https://gate.example",
        "https://gate.example/anthropics",
        "https://gate.example/anthropic/../other",
        "https://gate.example:444/anthropic",
        "http://gate.example/anthropic",
        "https://gate.example.attacker.example/anthropic",
        "https://gate.example@attacker.example/anthropic",
        "https://gate.example\\@attacker.example/anthropic",
        "https://attacker.example\t.gate.example/anthropic",
        "https://attacker.example#@gate.example/anthropic",
        "https://attacker.example?https://gate.example/anthropic",
        "//attacker.example",
        "attacker.example",
        "http://127.0.0.1:80800",
        "http://[::1]",
        " https://gate.example/anthropic",
    ):
        with pytest.raises(VariableRefused) as refused:
            credentials.check({name: url}, NAMED, owner=owner)
        assert "carrel auth set anthropic --endpoint" in refused.value.hint


def test_an_endpoint_is_named_for_each_key_that_is_given() -> None:
    both = {**NAMED, "openai": ["https://other.example"]}
    with pytest.raises(VariableRefused):
        credentials.check({"OPENAI_BASE_URL": "https://gate.example/anthropic"}, both, owner=True)


def test_all_else_is_the_owners_own_affair() -> None:
    env = dict.fromkeys([*LOADING, "APP_BASE_URL", "DATABASE_URL"], "http://somewhere.example")
    credentials.check(env, NAMED, owner=True)
    credentials.check({"ANTHROPIC_BASE_URL": ""}, NAMED, owner=True)


def test_who_brings_a_key() -> None:
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"):
        assert credentials.brings_key({name: "sk"}, ["anthropic"])
    assert credentials.brings_key({"OPENAI_API_KEY": ""}, ["anthropic", "openai"])
    assert not credentials.brings_key({"OPENAI_API_KEY": "sk", "PATH": "x"}, ["anthropic"])


def test_endpoints_that_cannot_be() -> None:
    credentials.check_endpoints(["https://a.example", "http://[::1]:9/v1/", "http://10.0.0.1"])
    for one in ("ftp://a", "https://u:p@a", "https://a?x", "https://", "a.example", "https://a b"):
        with pytest.raises(MessageInvalid):
            credentials.check_endpoints([one])
    with pytest.raises(MessageInvalid):
        credentials.check_endpoints(["https://a.example"] * 33)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("API_KEY", "x"),
        ("github_token", "abc"),
        ("DbPassword", "hunter2"),
        ("GOOGLE_APPLICATION_CREDENTIALS", "{}"),
        ("X", "sk-ant-api03-abcdefgh"),
        ("X", "see ghp_abcdefghijklmnopqrst"),
        ("X", "github_pat_11ABCDEFGHIJKLMNOP"),
        ("X", "AKIAIOSFODNN7EXAMPLE"),
        ("DATABASE_URL", "postgres://me:secret@host/db"),
        ("X", "-----BEGIN OPENSSH PRIVATE KEY-----\nabc"),
        ("X", "eyJhbGciOiJI.eyJzdWIiOiIx.sig"),
    ],
)
def test_what_looks_like_a_key_is_not_shown(name: str, value: str) -> None:
    assert masked({name: value}) == {name: HIDDEN}


def test_what_does_not_is() -> None:
    env = {"MODE": "fast", "URL": "https://a.example/b:c@d", "API_KEY": "", "SKU": "sk-1"}
    assert masked(env) == env
