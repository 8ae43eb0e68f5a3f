"""Which language a file is in, by its name or its first line. A small table of our own: what
a client does with it is to colour text and to count."""

from __future__ import annotations

import re

# fmt: off
_BY_ENDING = {
    "ada": "adb ads", "asciidoc": "adoc asciidoc", "assembly": "asm s", "astro": "astro",
    "awk": "awk", "batch": "bat cmd", "bicep": "bicep", "c": "c h", "clojure": "clj cljs cljc edn",
    "cmake": "cmake", "cobol": "cbl cob", "coffeescript": "coffee",
    "cpp": "cc cpp cxx hh hpp hxx ipp tpp", "crystal": "cr", "csharp": "cs csx", "css": "css",
    "csv": "csv tsv", "cuda": "cu cuh", "cython": "pyx pxd", "d": "d di", "dart": "dart",
    "diff": "diff patch", "dockerfile": "dockerfile", "dotenv": "env", "elixir": "ex exs",
    "elm": "elm", "erlang": "erl hrl", "fish": "fish", "fortran": "f f90 f95 f03 f08 for",
    "fsharp": "fs fsi fsx", "gherkin": "feature", "glsl": "glsl vert frag", "go": "go",
    "graphql": "graphql gql", "groovy": "groovy gradle", "haskell": "hs lhs",
    "hcl": "hcl tf tfvars",
    "html": "html htm xhtml", "ini": "ini cfg conf", "java": "java",
    "javascript": "js mjs cjs jsx", "json": "json json5 jsonc jsonl webmanifest",
    "jinja": "j2 jinja jinja2", "julia": "jl", "kotlin": "kt kts", "latex": "tex sty cls",
    "less": "less", "lisp": "lisp lsp el", "lua": "lua", "make": "mk mak",
    "markdown": "md mdx markdown",
    "matlab": "mat", "mermaid": "mmd", "nim": "nim nims", "nix": "nix", "notebook": "ipynb",
    "objective-c": "m mm", "ocaml": "ml mli", "pascal": "pas pp", "perl": "pl pm t",
    "php": "php phtml",
    "powershell": "ps1 psm1 psd1", "prolog": "pro", "properties": "properties",
    "protobuf": "proto", "puppet": "epp", "python": "py pyi pyw", "r": "r rmd", "racket": "rkt",
    "restructuredtext": "rst", "ruby": "rb rake gemspec", "rust": "rs", "sass": "sass",
    "scala": "scala sc sbt",
    "scheme": "scm ss", "scss": "scss", "shell": "sh bash zsh ksh dash", "smalltalk": "st",
    "solidity": "sol", "sql": "sql", "starlark": "bzl star", "svelte": "svelte", "svg": "svg",
    "swift": "swift", "tcl": "tcl", "text": "txt text log", "toml": "toml",
    "typescript": "ts mts cts tsx", "typst": "typ", "vala": "vala", "verilog": "v sv svh",
    "vhdl": "vhd vhdl", "vim": "vim", "visual-basic": "vb bas", "vue": "vue",
    "webassembly": "wat wast", "xml": "xml xsd xsl xslt plist", "yaml": "yaml yml", "zig": "zig",
}
_BY_NAME = {
    "cmake": "cmakelists.txt", "dockerfile": "dockerfile containerfile", "dotenv": ".env",
    "go": "go.mod go.sum", "groovy": "jenkinsfile", "hcl": "terraform.lock.hcl",
    "ini": ".editorconfig .gitconfig .npmrc pylintrc", "json": ".babelrc .eslintrc .prettierrc",
    "just": "justfile", "make": "makefile gnumakefile", "python": "sconstruct sconscript",
    "ruby": "gemfile rakefile vagrantfile podfile brewfile",
    "shell": ".bashrc .profile .zshrc .envrc",
    "starlark": "build workspace tiltfile", "text": "license readme notice authors changelog",
    "toml": "pipfile cargo.lock poetry.lock uv.lock", "yaml": ".clang-format",
}
_BY_PROGRAM = {
    "awk": "awk gawk mawk", "fish": "fish", "groovy": "groovy",
    "javascript": "node nodejs bun deno",
    "julia": "julia", "lua": "lua luajit", "make": "make", "nix": "nix-shell", "perl": "perl",
    "php": "php", "powershell": "pwsh", "python": "python pypy", "r": "rscript", "ruby": "ruby",
    "shell": "sh bash dash ksh zsh ash", "tcl": "tclsh wish expect", "typescript": "ts-node tsx",
}
# fmt: on


def _turned(table: dict[str, str]) -> dict[str, str]:
    return {word: language for language, words in table.items() for word in words.split()}


_ENDINGS, _NAMES, _PROGRAMS = _turned(_BY_ENDING), _turned(_BY_NAME), _turned(_BY_PROGRAM)
_SHEBANG = re.compile(rb"#!\s*(?:\S*/)?env\s+(?:-\S+\s+)*(?:\w+=\S*\s+)*(\S+)|#!\s*(\S+)")
_VERSION = re.compile(r"[0-9.]+$")


def language_of(path: str, beginning: bytes = b"") -> str:
    """Empty when it cannot be told."""
    name = path.rpartition("/")[2].lower()
    known = _NAMES.get(name)
    if known is None and "." in name:
        known = _ENDINGS.get(name.rpartition(".")[2])
    if known is None and name.partition(".")[0] in ("dockerfile", "makefile"):
        known = _NAMES[name.partition(".")[0]]
    return known or _by_first_line(beginning)


def _by_first_line(beginning: bytes) -> str:
    found = _SHEBANG.match(beginning)
    if found is None:
        return ""
    program = (found[1] or found[2]).decode("ascii", "replace").rpartition("/")[2]
    return _PROGRAMS.get(_VERSION.sub("", program).lower(), "")
