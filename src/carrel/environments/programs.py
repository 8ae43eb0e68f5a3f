"""The programs that projects need: where the host has them, and which package brings them."""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass

from carrel.domain.environments import ProgramNeeded, Toolchain


@dataclass(frozen=True)
class ProgramInfo:
    """`package` is Debian's; `hint` says what to do when it has none, or an old one only."""

    package: str = ""
    tool: str = ""
    """The name under which versions of it are asked for."""
    hint: str = ""
    beside: str = ""
    """For what is no program: a file that gives it away, relative to a folder of programs."""


PYTHON_VENV = "python3-venv"

PROGRAMS: Mapping[str, ProgramInfo] = {
    "Rscript": ProgramInfo("r-base-core", "r"),
    "bun": ProgramInfo("", "bun", "npm install --global bun"),
    "bundle": ProgramInfo("ruby-bundler", "bundler"),
    "c++": ProgramInfo("g++"),
    "cabal": ProgramInfo("cabal-install"),
    "cargo": ProgramInfo("cargo", "rust"),
    "cc": ProgramInfo("gcc"),
    "clojure": ProgramInfo("clojure", "clojure"),
    "cmake": ProgramInfo("cmake", "cmake"),
    "composer": ProgramInfo("composer"),
    "conda": ProgramInfo(),
    "cpanm": ProgramInfo("cpanminus"),
    "dart": ProgramInfo("", "dart"),
    "deno": ProgramInfo("", "deno", "npm install --global deno"),
    "dotnet": ProgramInfo("", "dotnet"),
    "dune": ProgramInfo("ocaml-dune"),
    "elixir": ProgramInfo("elixir", "elixir"),
    "erl": ProgramInfo("erlang-base", "erlang"),
    "ghc": ProgramInfo("ghc", "haskell"),
    "git": ProgramInfo("git"),
    "go": ProgramInfo("golang-go", "go"),
    "gradle": ProgramInfo("gradle", "gradle"),
    "java": ProgramInfo("default-jdk-headless", "java"),
    "javac": ProgramInfo("default-jdk-headless", "java"),
    "julia": ProgramInfo("", "julia"),
    "lein": ProgramInfo("leiningen"),
    "luarocks": ProgramInfo("luarocks", "lua"),
    "make": ProgramInfo("make"),
    "meson": ProgramInfo("meson"),
    "mix": ProgramInfo("elixir", "elixir"),
    "mvn": ProgramInfo("maven", "maven"),
    "ninja": ProgramInfo("ninja-build"),
    "nix": ProgramInfo("nix-bin"),
    "node": ProgramInfo("nodejs", "node"),
    "npm": ProgramInfo("npm", "npm"),
    "ocaml": ProgramInfo("ocaml", "ocaml"),
    "opam": ProgramInfo("opam"),
    "pdm": ProgramInfo("python3-pdm"),
    "perl": ProgramInfo("perl", "perl"),
    "php": ProgramInfo("php-cli", "php"),
    "pipenv": ProgramInfo("pipenv"),
    "pnpm": ProgramInfo("", "pnpm", "npm install --global pnpm"),
    "poetry": ProgramInfo("python3-poetry", "poetry"),
    "python3": ProgramInfo("python3", "python"),
    PYTHON_VENV: ProgramInfo(PYTHON_VENV, beside="../lib/python3*/ensurepip/__init__.py"),
    "rebar3": ProgramInfo("rebar3"),
    "ruby": ProgramInfo("ruby", "ruby"),
    "rustc": ProgramInfo("rustc", "rust"),
    "sbt": ProgramInfo("", "sbt"),
    "sh": ProgramInfo("dash"),
    "stack": ProgramInfo("haskell-stack"),
    "swift": ProgramInfo("", "swift"),
    "uv": ProgramInfo("", "uv"),
    "yarn": ProgramInfo("", "yarn", "npm install --global yarn"),
    "zig": ProgramInfo("", "zig"),
}


class HostPrograms:
    """Where a sandbox would find programs of the host. Nothing is executed.

    `search_path` is the sandbox's PATH; `shown` are the folders of the host that it sees
    (none: all of them), so that a link in /usr/bin to somebody's home does not count.
    """

    def __init__(self, search_path: str, shown: tuple[str, ...] = ()) -> None:
        self.search_path = search_path
        self._shown = tuple(os.path.realpath(folder) for folder in shown)

    def find(self, name: str) -> str | None:
        """The path of a program, or of the file that gives it away."""
        beside = PROGRAMS.get(name, ProgramInfo()).beside
        if not beside:
            return shutil.which(name, path=self.search_path)
        for folder in self.search_path.split(os.pathsep):
            pattern = os.path.join(glob.escape(os.path.realpath(folder)), beside)
            if folder and (found := sorted(glob.glob(pattern))):
                return os.path.normpath(found[-1])
        return None

    def sees(self, path: str) -> bool:
        real = os.path.realpath(path)
        return not self._shown or any(
            os.path.commonpath((real, folder)) == folder for folder in self._shown
        )


def look_up(
    host: HostPrograms, needed: Mapping[str, tuple[str, ...]], asked: Mapping[str, str]
) -> Toolchain:
    """`needed` says for whom each program is needed, `asked` which version of a tool."""
    programs = []
    for name, needed_by in needed.items():
        known = PROGRAMS.get(name, ProgramInfo())
        found = host.find(name)
        hint = _remedy(name, known)
        if found and not host.sees(found):
            real = os.path.realpath(found)
            hint = f"{found} is {real}, which sandboxes do not see. {hint}"
            found = None
        programs.append(
            ProgramNeeded(
                name,
                needed_by,
                found or "",
                asked.get(known.tool, ""),
                known.package,
                "" if found else hint,
            )
        )
    return Toolchain(host.search_path, tuple(programs))


def _remedy(name: str, known: ProgramInfo) -> str:
    if known.package:
        return f"apt-get install {known.package}"
    return known.hint or f"Debian has no package of it. Put {name} into /usr/local/bin."
