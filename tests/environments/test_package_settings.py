"""What of the settings for package managers is passed on, and what never is."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from carrel.domain.environments import PackageSettings
from carrel.environments.home_tools import HomeToolchains
from carrel.environments.login_shell import PersonAccount
from carrel.environments.package_settings import NOBODY, PackageManagers, without_password

SECRET = "s3cr3t"
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
KEY = "-----BEGIN PRIVATE KEY-----\ns3cr3t\n-----END PRIVATE KEY-----\n"
FILES = {
    ".config/pip/pip.conf": f"""
[global]
index_url = https://ada:{SECRET}@pypi.example.com/simple
trusted-host = pypi.example.com
    other.example.com
cert = ~/ca.pem
keyring-provider = subprocess
[install]
extra-index-url =
    https://{SECRET}@one.example.com/simple
    https://two.example.com/@scope/simple
find-links = https://ada:{SECRET}/with/slash@three.example.com/
""",
    ".npmrc": f"""
registry = "https://npm.example.com/"
 @corp:registry=https://ada:{SECRET}@corp.example.com/npm/
//corp.example.com/npm/:_authToken={SECRET}
_auth={SECRET}
always-auth
script-shell=/tmp/evil
node-options=--require /tmp/evil.js
cafile=/etc/ssl/certs/ca.crt
strict-ssl=true
""",
    ".config/uv/uv.toml": f"""
index-url = "https://uv.example.com/simple"
cache-dir = "/home/ada/cache"
keyring-provider = "subprocess"
[[index]]
name = "corp"
url = "https://ada:{SECRET}@corp.example.com/simple"
default = true
""",
    ".cargo/config.toml": f"""
[build]
rustc-wrapper = "/tmp/evil"
[target.x86_64-unknown-linux-gnu]
runner = "/tmp/evil"
[registry]
global-credential-providers = ["/tmp/evil"]
token = "{SECRET}"
[registries.corp]
index = "sparse+https://ada:{SECRET}@cargo.example.com/"
credential-provider = "/tmp/evil"
[source.crates-io]
replace-with = "corp"
[net]
offline = false
retry = 3
[http]
cainfo = "/srv/both.pem"
""",
    ".cargo/credentials.toml": f'[registries.corp]\ntoken = "{SECRET}"\n',
    ".netrc": f"machine example.com login ada password {SECRET}\n",
    "ca.pem": CERTIFICATE,
    "both.pem": CERTIFICATE + KEY,
}


def managers(home: Path, env: dict[str, str]) -> PackageManagers:
    toolchains = HomeToolchains(home.parent / "data", PersonAccount("ada", home, ""))
    seen = ("/etc/ssl/certs",)
    return PackageManagers(home, env, dict, toolchains.check, lambda: seen, home.parent / "system")


def found(home: Path, *, credentials: bool = False, **env: str) -> PackageSettings:
    return managers(home, env).settings(credentials=credentials)


def write(home: Path, **more: str) -> None:
    for name, text in {**FILES, **more}.items():
        text = text.replace("/srv/both.pem", f"{home}/both.pem")
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


def test_addresses_are_passed_and_credentials_and_commands_are_not(home: Path) -> None:
    write(home)
    settings = found(home)
    assert SECRET not in str(settings) and "evil" not in str(settings)
    assert "keyring" not in str(settings.files) and "cache-dir" not in str(settings.files)
    pip, npm = settings.files[".config/pip/pip.conf"], settings.files[".npmrc"]
    assert "index-url = https://pypi.example.com/simple\n" in pip
    assert "trusted-host = pypi.example.com other.example.com\n" in pip
    one, two = "https://one.example.com/simple", "https://two.example.com/@scope/simple"
    assert f"extra-index-url = {one} {two}\n" in pip and "three" not in pip
    assert f"cert = {home}/ca.pem\n" in pip and set(settings.shown) == {f"{home}/ca.pem"}
    assert "registry=https://npm.example.com/\n" in npm
    assert "@corp:registry=https://corp.example.com/npm/\n" in npm
    uv, cargo = (
        tomllib.loads(settings.files[f]) for f in (".config/uv/uv.toml", ".cargo/config.toml")
    )
    assert uv["index"] == [
        {"name": "corp", "url": "https://corp.example.com/simple", "default": True}
    ]
    assert cargo == {
        "registries": {"corp": {"index": "sparse+https://cargo.example.com/"}},
        "source": {"crates-io": {"replace-with": "corp"}},
        "net": {"offline": False, "retry": 3},
    }
    for what in ("the password in pip global.index-url", ".netrc", "cargo registries.corp.token"):
        assert what in settings.withheld
    assert "npm //corp.example.com/npm/:_authToken" in settings.withheld
    assert f"cargo http.cainfo, since {home}/both.pem cannot be shown" in settings.withheld


def test_credentials_are_passed_on_request_and_commands_not_even_then(home: Path) -> None:
    write(home)
    settings = found(home, credentials=True, UV_INDEX_CORP_PASSWORD=SECRET)
    assert f"https://ada:{SECRET}@pypi.example.com" in settings.files[".config/pip/pip.conf"]
    assert f"//corp.example.com/npm/:_authToken={SECRET}\n" in settings.files[".npmrc"]
    assert settings.files[".netrc"] == FILES[".netrc"]
    assert tomllib.loads(settings.files[".cargo/credentials.toml"]) == {
        "registries": {"corp": {"token": SECRET}}
    }
    assert settings.env == {"UV_INDEX_CORP_PASSWORD": SECRET}
    assert "evil" not in str(settings) and "BEGIN" not in str(settings)
    assert not any("both.pem" in path for path in settings.shown)


def test_variables(home: Path) -> None:
    write(home)
    folder = home / "authorities"
    folder.mkdir()
    (folder / "one.pem").write_text(CERTIFICATE)
    settings = found(
        home,
        HTTPS_PROXY=f"http://ada:{SECRET}@proxy:3128",
        no_proxy=".example.com",
        SSL_CERT_DIR=f"/etc/ssl/certs:{folder}",
        REQUESTS_CA_BUNDLE=str(home / "both.pem"),
        NODE_EXTRA_CA_CERTS=str(home / ".netrc"),
        UV_INDEX=f"corp=https://ada:{SECRET}@corp.example.com/simple https://more.example.com",
        UV_INDEX_CORP_PASSWORD=SECRET,
        CARGO_REGISTRIES_CORP_INDEX="ssh://git@example.com/index",
        CARGO_BUILD_RUSTC_WRAPPER="/tmp/evil",
        PIP_CONFIG_FILE="/nonexistent",
        npm_config_registry="https://npm.example.com/",
    )
    assert settings.env == {
        "HTTPS_PROXY": "http://proxy:3128",
        "no_proxy": ".example.com,localhost,127.0.0.1,::1",
        "SSL_CERT_DIR": f"/etc/ssl/certs:{folder}",
        "UV_INDEX": "corp=https://corp.example.com/simple https://more.example.com",
        "CARGO_REGISTRIES_CORP_INDEX": "ssh://git@example.com/index",
        "npm_config_registry": "https://npm.example.com/",
    }
    assert str(folder) in settings.shown and SECRET not in str(settings.withheld)
    assert "UV_INDEX_CORP_PASSWORD" in settings.withheld


def test_what_changes_is_seen(home: Path) -> None:
    env: dict[str, str] = {}
    asked = managers(home, env)
    assert ".netrc" not in asked.settings().withheld
    assert asked.settings() is asked.settings()
    (home / ".netrc").write_text(FILES[".netrc"])
    assert (
        asked.settings().withheld == (".netrc",) and not asked.settings(credentials=True).withheld
    )
    env["HTTP_PROXY"] = "http://proxy:1"
    assert asked.settings().env["HTTP_PROXY"] == "http://proxy:1"


@pytest.mark.parametrize(
    ("url", "bare"),
    [
        ("https://a:b@h/x", "https://h/x"),
        ("a:b@proxy:1", "proxy:1"),
        ("https://a:b@c@h/x", "https://h/x"),
        ("https://h/x?token=s#t", "https://h/x"),
        ("https://a:b/c@h/x", ""),
        ("//a:b@h", "//h"),
        ("https://[::1]:8/x", "https://[::1]:8/x"),
        ("https://h/pypi-AgEIcHlwaS5vcmc0123456789/simple", ""),
        ("https://${TOKEN}@h/", ""),
        ("/opt/wheels", "/opt/wheels"),
        ("ssh://git:p@h/x", "ssh://h/x"),
        ("https:///a:b@h/x", ""),
        ("https:/a:b@h/x", ""),
        ("sparse+https:///a:b@h/x", ""),
        ("https:////a:b@h/x", ""),
        ("///a:b@h/x", ""),
        ("https://a:12/b@h/x", ""),
        ("https://a:12/@b@h/x", ""),
        ("a:12/b@proxy:1", ""),
        ("https://h/@scope/simple", "https://h/@scope/simple"),
        ("file:///srv/a@b", "file:///srv/a@b"),
        ("/srv/a@b", "/srv/a@b"),
        (f"https://pypi.anaconda.org/t/{SECRET}-1/ada/simple", ""),
        (f"https://packagecloud.io/{'0a1b2c3d' * 6}/ada/repo/pypi/simple", ""),
    ],
)
def test_passwords_in_addresses(url: str, bare: str) -> None:
    assert without_password(url) == bare


def test_no_public_index_takes_the_place_of_one_that_cannot_be_passed(home: Path) -> None:
    bad, token = f"https://ada:1/{SECRET}@corp.example.com/", "ghp_0123456789abcdefghij"
    for name, text in {
        ".config/pip/pip.conf": f"[global]\nindex-url = {bad}\nproxy = {bad}\n",
        ".config/uv/uv.toml": f'index-url = "https://corp.example.com/{token}/"\n',
        ".npmrc": f"registry={bad}\n@b:registry=https:///a:{SECRET}@h/\n",
        ".cargo/config.toml": f'[registries.corp]\nindex = "sparse+https:/a:{SECRET}@h/"\n',
    }.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    settings = found(home, PIP_EXTRA_INDEX_URL=bad, HTTPS_PROXY=bad)
    assert SECRET not in str(settings) and token not in str(settings)
    assert f"index-url = {NOBODY}\n" in settings.files[".config/pip/pip.conf"]
    assert "proxy" not in settings.files[".config/pip/pip.conf"]
    assert f"registry={NOBODY}\n@b:registry={NOBODY}\n" in settings.files[".npmrc"]
    assert settings.env == {"PIP_EXTRA_INDEX_URL": NOBODY}
    for name in (".config/uv/uv.toml", ".cargo/config.toml"):
        assert NOBODY in settings.files[name]
    assert f"an address in npm registry, in place of which there is {NOBODY}" in settings.withheld
    assert "the password in HTTPS_PROXY" in settings.withheld


def test_words_beside_addresses_and_names_of_tables(home: Path) -> None:
    (home / ".cargo").mkdir()
    (home / ".npmrc").write_text(
        f"registry=https://h/ ; old token a/{SECRET}\n//a:{SECRET}@h/:_authToken=x\n"
        f"//https://a:{SECRET}@h/:_authToken=x\n"
    )
    (home / ".pip").mkdir()
    (home / ".pip" / "pip.conf").write_text(
        f"[global]\nextra-index-url = https://h/ ; {SECRET} https://i/\n"
    )
    (home / ".cargo" / "config.toml").write_text(
        f"""[source."git+https://ada:{SECRET}@h/x.git?branch=main"]
replace-with = "corp"
[source."https://{SECRET}@h/index"]
replace-with = "corp"
[source."https://h/index"]
replace-with = "corp"
"""
    )
    settings = found(home)
    assert SECRET not in str(settings) and SECRET in str(found(home, credentials=True))
    assert "registry=https://h/\n" in settings.files[".npmrc"]
    assert "extra-index-url = https://h/ https://i/\n" in settings.files[".config/pip/pip.conf"]
    cargo = tomllib.loads(settings.files[".cargo/config.toml"])
    assert cargo == {"source": {"https://h/index": {"replace-with": "corp"}}}


def test_certificates_that_become_keys_are_shown_no_longer(home: Path) -> None:
    folder = home / "authorities"
    folder.mkdir()
    for path in (home / "ca.pem", folder / "one.pem"):
        path.write_text(CERTIFICATE)
    (home / ".npmrc").write_text(f"cafile={home}/ca.pem\n")
    asked = managers(home, {"SSL_CERT_DIR": str(folder)})
    assert set(asked.settings().shown) == {f"{home}/ca.pem", str(folder)}
    (home / "ca.pem").write_text(CERTIFICATE + KEY)
    assert set(asked.settings().shown) == {str(folder)}
    (folder / "one.pem").write_text(CERTIFICATE + KEY)
    assert not asked.settings().shown


@pytest.mark.parametrize(
    "text", ["[", "a = [" * 5000, "\xff", "[a]\nb=1\n[a]\nb", "=", "x" * 300_000]
)
def test_what_is_malformed_is_left_out(home: Path, text: str) -> None:
    for name in FILES:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_bytes(text.encode("latin-1"))
    settings = found(home)
    for name in (".config/pip/pip.conf", ".config/uv/uv.toml", ".cargo/config.toml"):
        assert "x" * 10 not in settings.files.get(name, "") and "[a]" not in settings.files
    assert ".netrc" not in settings.files


KEY_BLOCK = (
    "-----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mQINBF+/=\n -----END PGP PUBLIC KEY BLOCK-----"
)
APT = {
    "apt.conf": f"""
// Acquire::http::Proxy "http://old.example.com";
Acquire::https::Proxy::corp.example.com "DIRECT"; # a note
Acquire::http {{ Proxy "http://ada:{SECRET}@proxy.example.com:3128/"; Timeout "9"; }};
Acquire::http::Proxy-Auto-Detect "/tmp/evil";
DPkg::Post-Invoke {{ "/tmp/evil"; }};
""",
    "apt.conf.d/10first": 'Acquire::Retries "2";',
    "apt.conf.d/20old.dpkg-old": 'Acquire::Retries "9";',
    "sources.list": f"""
# deb http://old.example.com x main
deb [arch=amd64,arm64 signed-by=/usr/share/k.gpg] http://ada:{SECRET}@one.example.com/d s m n
deb-src https://ada:{SECRET}/with/slash@two.example.com/ ./
""",
    "sources.list.d/three.sources": f"""
X-Note: {SECRET}
Types: deb
URIs: https://three.example.com/d
 https://ada:{SECRET}@four.example.com/d
Suites: stable
Components: main
Signed-By:
 {KEY_BLOCK}

Enabled: no
Types: deb
URIs: https://five.example.com
Suites: x
""",
    "auth.conf": f"machine one.example.com login ada password {SECRET}\n",
}


def test_apt(home: Path) -> None:
    """What its configuration says about the way, and all sources in the one form."""
    folder = home.parent / "system" / "etc" / "apt"
    for name, text in APT.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    settings = found(home)
    assert SECRET not in str(settings) and "evil" not in str(settings)
    assert settings.files[".config/apt/apt.conf"].splitlines() == [
        'acquire::retries "2";',
        'acquire::https::proxy::corp.example.com "DIRECT";',
        'acquire::http::proxy "http://proxy.example.com:3128/";',
        'acquire::http::timeout "9";',
    ]
    sources = settings.files[".config/apt/sources.list.d/owner.sources"]
    assert sources.split("\n\n") == [
        "types: deb\nuris: http://one.example.com/d\nsuites: s\ncomponents: m n\n"
        "architectures: amd64 arm64\nsigned-by: /usr/share/k.gpg",
        f"types: deb-src\nuris: {NOBODY}\nsuites: ./",
        "types: deb\nuris: https://three.example.com/d https://four.example.com/d\n"
        f"suites: stable\ncomponents: main\nsigned-by: \n {KEY_BLOCK}\n",
    ]
    assert str(folder / "auth.conf") in settings.withheld
    given = found(home, credentials=True).files
    assert given[".config/apt/auth.conf"] == APT["auth.conf"]
    assert f"ada:{SECRET}@four" in given[".config/apt/sources.list.d/owner.sources"]
