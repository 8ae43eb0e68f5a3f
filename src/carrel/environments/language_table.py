"""The languages, as one table: what gives them away, what they need, what sets them up.

Managers are tried in order; the first that holds is the one. A marker is the name of a file,
or a pattern of names. In a command, `{}` is the marker that was found. Of several rows with
one name, the first that holds is the one.
"""

from __future__ import annotations

from dataclasses import dataclass

from carrel.environments.programs import PYTHON_VENV

Argv = tuple[str, ...]


@dataclass(frozen=True)
class Manager:
    """One way to get the packages of a project."""

    name: str
    markers: tuple[str, ...]
    programs: tuple[str, ...]
    setup: tuple[Argv, ...] = ()
    pattern: str = ""
    """A regular expression that must be found in the marker, line by line."""
    locked: bool = False
    """The marker pins every package: two of them contradict each other."""


@dataclass(frozen=True)
class Language:
    """`image` is the repository and tag of its image, with `{}` for the version, and `tag`
    what stands there when no single version is asked for."""

    name: str
    title: str
    markers: tuple[str, ...]
    managers: tuple[Manager, ...] = ()
    programs: tuple[str, ...] = ()
    """When no manager holds."""
    image: str = ""
    tag: str = "latest"
    pattern: str = ""
    """As a manager's: the marker's name alone says too little."""
    helper: bool = False
    """Often stands beside the language that a project is written in."""


_VENV: Argv = ("python3", "-m", "venv", ".venv")
_PIP: Argv = (".venv/bin/pip", "install")
_POM = ("pom.xml",)
_GRADLE = ("build.gradle", "build.gradle.kts", "settings.gradle", "settings.gradle.kts")
_DOTNET = ("*.sln", "*.slnx", "*.csproj", "*.fsproj", "*.vbproj")
_CONDA = ("environment.yml", "environment.yaml")
_DEPENDENCIES = r"^dependencies:"
_JDK = ("java", "javac")
_C = ("cc", "c++", "make")

_NODE = (
    Manager(
        "pnpm",
        ("pnpm-lock.yaml",),
        ("node", "pnpm"),
        (("pnpm", "install", "--frozen-lockfile"),),
        locked=True,
    ),
    Manager("yarn", (".yarnrc.yml",), ("node", "yarn"), (("yarn", "install", "--immutable"),)),
    Manager(
        "yarn",
        ("yarn.lock",),
        ("node", "yarn"),
        (("yarn", "install", "--frozen-lockfile"),),
        locked=True,
    ),
    Manager(
        "bun",
        ("bun.lock", "bun.lockb"),
        ("bun",),
        (("bun", "install", "--frozen-lockfile"),),
        locked=True,
    ),
    Manager(
        "npm",
        ("package-lock.json", "npm-shrinkwrap.json"),
        ("node", "npm"),
        (("npm", "ci"),),
        locked=True,
    ),
    Manager("npm", ("package.json",), ("node", "npm"), (("npm", "install"),)),
)

_PYTHON = (
    Manager("uv", ("uv.lock",), ("python3", "uv"), (("uv", "sync"),), locked=True),
    Manager(
        "poetry", ("poetry.lock",), ("python3", "poetry"), (("poetry", "install"),), locked=True
    ),
    Manager("pdm", ("pdm.lock",), ("python3", "pdm"), (("pdm", "install"),), locked=True),
    Manager(
        "pipenv",
        ("Pipfile.lock",),
        ("python3", "pipenv"),
        (("pipenv", "sync", "--dev"),),
        locked=True,
    ),
    Manager("pipenv", ("Pipfile",), ("python3", "pipenv"), (("pipenv", "install", "--dev"),)),
    Manager(
        "poetry",
        ("pyproject.toml",),
        ("python3", "poetry"),
        (("poetry", "install"),),
        pattern=r"^\[tool\.poetry\b",
    ),
    Manager(
        "pdm",
        ("pyproject.toml",),
        ("python3", "pdm"),
        (("pdm", "install"),),
        pattern=r"^\[tool\.pdm\b",
    ),
    Manager(
        "conda",
        _CONDA,
        ("conda",),
        (("conda", "env", "create", "--file", "{}"),),
        pattern=_DEPENDENCIES,
    ),
    Manager(
        "pip",
        ("requirements.txt",),
        ("python3", PYTHON_VENV),
        (_VENV, (*_PIP, "-r", "{}")),
    ),
    Manager(
        "pip",
        ("pyproject.toml",),
        ("python3", PYTHON_VENV),
        (_VENV, (*_PIP, "-e", ".")),
        pattern=r"^\[(?:project|build-system)\]",
    ),
    Manager("pip", ("setup.py",), ("python3", PYTHON_VENV), (_VENV, (*_PIP, "-e", "."))),
)

_JAVA = (
    Manager("maven", ("mvnw",), _JDK, (("./mvnw", "-B", "dependency:go-offline"),)),
    Manager("maven", _POM, (*_JDK, "mvn"), (("mvn", "-B", "dependency:go-offline"),)),
    Manager("gradle", ("gradlew",), _JDK, (("./gradlew", "--no-daemon", "dependencies"),)),
    Manager("gradle", _GRADLE, (*_JDK, "gradle"), (("gradle", "--no-daemon", "dependencies"),)),
)

LANGUAGES: tuple[Language, ...] = (
    Language("node", "Node.js", ("package.json",), _NODE, image="node:{}", tag="lts"),
    Language("deno", "Deno", ("deno.json", "deno.jsonc"), programs=("deno",)),
    Language(
        "python",
        "Python",
        (
            "pyproject.toml",
            "requirements.txt",
            "setup.py",
            "setup.cfg",
            "Pipfile",
            "uv.lock",
            "poetry.lock",
            "pdm.lock",
        ),
        _PYTHON,
        ("python3",),
        "python:{}",
        "3",
    ),
    Language("python", "Python", _CONDA, _PYTHON, pattern=_DEPENDENCIES),
    Language(
        "rust",
        "Rust",
        ("Cargo.toml",),
        (
            Manager(
                "cargo",
                ("Cargo.lock",),
                ("cargo", "rustc", "cc"),
                (("cargo", "fetch", "--locked"),),
            ),
            Manager("cargo", ("Cargo.toml",), ("cargo", "rustc", "cc"), (("cargo", "fetch"),)),
        ),
        image="rust:{}",
        tag="1",
    ),
    Language(
        "go",
        "Go",
        ("go.mod", "go.work"),
        (Manager("go", ("go.mod", "go.work"), ("go",), (("go", "mod", "download"),)),),
        image="golang:{}",
        tag="1",
    ),
    Language("java", "Java", (*_POM, *_GRADLE), _JAVA, image="eclipse-temurin:{}-jdk", tag="21"),
    Language(
        "ruby",
        "Ruby",
        ("Gemfile", "gems.rb", "*.gemspec"),
        (Manager("bundler", ("Gemfile", "gems.rb"), ("ruby", "bundle"), (("bundle", "install"),)),),
        ("ruby",),
        "ruby:{}",
        "3",
    ),
    Language(
        "php",
        "PHP",
        ("composer.json",),
        (Manager("composer", ("composer.json",), ("php", "composer"), (("composer", "install"),)),),
        image="php:{}-cli",
        tag="8",
    ),
    Language(
        "elixir",
        "Elixir",
        ("mix.exs",),
        (
            Manager(
                "mix",
                ("mix.exs",),
                ("elixir", "mix"),
                (("mix", "local.hex", "--force", "--if-missing"), ("mix", "deps.get")),
            ),
        ),
        image="elixir:{}",
        tag="1",
    ),
    Language(
        "erlang",
        "Erlang",
        ("rebar.config",),
        (Manager("rebar3", ("rebar.config",), ("erl", "rebar3"), (("rebar3", "get-deps"),)),),
        image="erlang:{}",
    ),
    Language(
        "dotnet",
        ".NET",
        (*_DOTNET, "global.json"),
        (Manager("dotnet", _DOTNET, ("dotnet",), (("dotnet", "restore"),)),),
        ("dotnet",),
    ),
    Language(
        "c",
        "C or C++",
        ("CMakeLists.txt", "meson.build", "configure.ac", "configure"),
        (
            Manager(
                "cmake", ("CMakeLists.txt",), (*_C, "cmake"), (("cmake", "-S", ".", "-B", "build"),)
            ),
            Manager(
                "meson", ("meson.build",), ("cc", "meson", "ninja"), (("meson", "setup", "build"),)
            ),
            Manager("configure", ("configure",), ("cc", "make"), (("./configure",),)),
        ),
        ("cc", "make"),
    ),
    Language(
        "swift",
        "Swift",
        ("Package.swift",),
        (Manager("swift", ("Package.swift",), ("swift",), (("swift", "package", "resolve"),)),),
        image="swift:{}",
    ),
    Language(
        "dart",
        "Dart",
        ("pubspec.yaml",),
        (Manager("pub", ("pubspec.yaml",), ("dart",), (("dart", "pub", "get"),)),),
        image="dart:{}",
        tag="stable",
    ),
    Language(
        "haskell",
        "Haskell",
        ("stack.yaml", "cabal.project", "*.cabal"),
        (
            Manager(
                "stack",
                ("stack.yaml",),
                ("stack",),
                (("stack", "build", "--only-dependencies"),),
            ),
            Manager(
                "cabal",
                ("cabal.project", "*.cabal"),
                ("ghc", "cabal"),
                (("cabal", "build", "--only-dependencies", "all"),),
            ),
        ),
        image="haskell:{}",
    ),
    Language(
        "ocaml",
        "OCaml",
        ("dune-project", "*.opam"),
        (
            Manager(
                "opam", ("*.opam",), ("opam",), (("opam", "install", ".", "--deps-only", "-y"),)
            ),
        ),
        ("ocaml", "dune"),
    ),
    Language(
        "scala",
        "Scala",
        ("build.sbt",),
        (Manager("sbt", ("build.sbt",), (*_JDK, "sbt"), (("sbt", "update"),)),),
    ),
    Language(
        "clojure",
        "Clojure",
        ("deps.edn", "project.clj"),
        (
            Manager("clojure", ("deps.edn",), ("java", "clojure"), (("clojure", "-P"),)),
            Manager("leiningen", ("project.clj",), ("java", "lein"), (("lein", "deps"),)),
        ),
        image="clojure:{}",
    ),
    Language(
        "julia",
        "Julia",
        ("Project.toml", "JuliaProject.toml"),
        (
            Manager(
                "pkg",
                ("Project.toml", "JuliaProject.toml"),
                ("julia",),
                (("julia", "--project=.", "-e", "using Pkg; Pkg.instantiate()"),),
            ),
        ),
        image="julia:{}",
    ),
    Language(
        "r",
        "R",
        ("renv.lock", "*.Rproj"),
        (Manager("renv", ("renv.lock",), ("Rscript",), (("Rscript", "-e", "renv::restore()"),)),),
        ("Rscript",),
        "r-base:{}",
    ),
    Language(
        "perl",
        "Perl",
        ("cpanfile", "Makefile.PL", "Build.PL"),
        (
            Manager(
                "cpanm",
                ("cpanfile", "Makefile.PL", "Build.PL"),
                ("perl", "cpanm"),
                (("cpanm", "--local-lib", "local", "--installdeps", "."),),
            ),
        ),
        image="perl:{}",
        tag="5",
    ),
    Language(
        "zig",
        "Zig",
        ("build.zig",),
        (Manager("zig", ("build.zig.zon",), ("zig",), (("zig", "build", "--fetch"),)),),
        ("zig",),
    ),
    Language("lua", "Lua", ("*.rockspec",), programs=("luarocks",)),
    Language("nix", "Nix", ("flake.nix", "shell.nix"), programs=("nix",), helper=True),
    Language(
        "make", "Make", ("Makefile", "makefile", "GNUmakefile"), programs=("make",), helper=True
    ),
)
