"""The programs that projects need: where the host has them, and which package brings them."""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass

from carrel.domain.environments import ProgramNeeded, Toolchain


@dataclass(frozen=True)
class Program:
    """`package` is Debian's; `hint` says what to do when it has none, or an old one only."""

    package: str = ""
    tool: str = ""
    """The name under which versions of it are asked for."""
    hint: str = ""
    beside: str = ""
    """For what is no program: a file that gives it away, relative to a folder of programs."""


PYTHON_VENV = "python3-venv"

PROGRAMS: Mapping[str, Program] = {
    "Rscript": Program("r-base-core", "r"),
    "bun": Program("", "bun", "npm install --global bun"),
    "bundle": Program("ruby-bundler", "bundler"),
    "c++": Program("g++"),
    "cabal": Program("cabal-install"),
    "cargo": Program("cargo", "rust"),
    "cc": Program("gcc"),
    "clojure": Program("clojure", "clojure"),
    "cmake": Program("cmake", "cmake"),
    "composer": Program("composer"),
    "conda": Program(),
    "cpanm": Program("cpanminus"),
    "dart": Program("", "dart"),
    "deno": Program("", "deno", "npm install --global deno"),
    "dotnet": Program("", "dotnet"),
    "dune": Program("ocaml-dune"),
    "elixir": Program("elixir", "elixir"),
    "erl": Program("erlang-base", "erlang"),
    "ghc": Program("ghc", "haskell"),
    "git": Program("git"),
    "go": Program("golang-go", "go"),
    "gradle": Program("gradle", "gradle"),
    "java": Program("default-jdk-headless", "java"),
    "javac": Program("default-jdk-headless", "java"),
    "julia": Program("", "julia"),
    "lein": Program("leiningen"),
    "luarocks": Program("luarocks", "lua"),
    "make": Program("make"),
    "meson": Program("meson"),
    "mix": Program("elixir", "elixir"),
    "mvn": Program("maven", "maven"),
    "ninja": Program("ninja-build"),
    "nix": Program("nix-bin"),
    "node": Program("nodejs", "node"),
    "npm": Program("npm", "npm"),
    "ocaml": Program("ocaml", "ocaml"),
    "opam": Program("opam"),
    "pdm": Program("python3-pdm"),
    "perl": Program("perl", "perl"),
    "php": Program("php-cli", "php"),
    "pipenv": Program("pipenv"),
    "pnpm": Program("", "pnpm", "npm install --global pnpm"),
    "poetry": Program("python3-poetry", "poetry"),
    "python3": Program("python3", "python"),
    PYTHON_VENV: Program(PYTHON_VENV, beside="../lib/python3*/ensurepip/__init__.py"),
    "rebar3": Program("rebar3"),
    "ruby": Program("ruby", "ruby"),
    "rustc": Program("rustc", "rust"),
    "sbt": Program("", "sbt"),
    "sh": Program("dash"),
    "stack": Program("haskell-stack"),
    "swift": Program("", "swift"),
    "uv": Program("", "uv"),
    "yarn": Program("", "yarn", "npm install --global yarn"),
    "zig": Program("", "zig"),
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
        beside = PROGRAMS.get(name, Program()).beside
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
        known = PROGRAMS.get(name, Program())
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


def _remedy(name: str, known: Program) -> str:
    if known.package:
        return f"apt-get install {known.package}"
    return known.hint or f"Debian has no package of it. Put {name} into /usr/local/bin."
