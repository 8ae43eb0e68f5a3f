"""Projects as they are laid out in public: tiny files after their shape, and what comes of them."""

from __future__ import annotations

from typing import NamedTuple


class Layout(NamedTuple):
    """`decided` is the file that decides (empty: the default), `image` what it asks for, or is
    built on."""

    name: str
    files: dict[str, str]
    decided: str
    image: str
    built: bool = False


LAYOUTS = [
    Layout(
        "one stage",
        {"Dockerfile": "FROM python:3.12-slim\nCOPY . /app\n"},
        "Dockerfile",
        "python:3.12-slim",
        True,
    ),
    Layout(
        "two stages",
        {
            "Dockerfile": "FROM golang:1.23 AS build\nRUN go build\n"
            "FROM gcr.io/distroless/static\nCOPY --from=build /x /x\n"
        },
        "Dockerfile",
        "gcr.io/distroless/static",
        True,
    ),
    Layout(
        "argument",
        {"Dockerfile": "ARG VERSION=20\nFROM node:${VERSION}-alpine\n"},
        "Dockerfile",
        "node:20-alpine",
        True,
    ),
    Layout(
        "argument without a value",
        {"Dockerfile": "ARG BASE\nFROM ${BASE}\n"},
        "Dockerfile",
        "",
        True,
    ),
    Layout(
        "from scratch",
        {"Dockerfile": "FROM scratch\nADD rootfs.tar /\n"},
        "Dockerfile",
        "scratch",
        True,
    ),
    Layout(
        "syntax line",
        {"Dockerfile": "# syntax=docker/dockerfile:1\nFROM rust:1.80\n"},
        "Dockerfile",
        "rust:1.80",
        True,
    ),
    Layout(
        "heredoc",
        {"Dockerfile": "FROM debian:12\nRUN <<EOF\napt-get update\nFROM nothing\nEOF\n"},
        "Dockerfile",
        "debian:12",
        True,
    ),
    Layout(
        "cache mounts",
        {"Dockerfile": "FROM ubuntu:24.04\nRUN --mount=type=cache,target=/root/.cache true\n"},
        "Dockerfile",
        "ubuntu:24.04",
        True,
    ),
    Layout(
        "other platform",
        {"Dockerfile": "FROM --platform=$BUILDPLATFORM alpine:3.20 AS base\n"},
        "Dockerfile",
        "alpine:3.20",
        True,
    ),
    Layout(
        "containerfile", {"Containerfile": "FROM fedora:40\n"}, "Containerfile", "fedora:40", True
    ),
    Layout(
        "both names",
        {"Containerfile": "FROM fedora:40\n", "Dockerfile": "FROM debian:12\n"},
        "Dockerfile",
        "debian:12",
        True,
    ),
    Layout(
        "windows lines",
        {"Dockerfile": "FROM debian:12\r\nENV A=1\r\n"},
        "Dockerfile",
        "debian:12",
        True,
    ),
    Layout(
        "lower case", {"Dockerfile": "from debian:12\nrun true\n"}, "Dockerfile", "debian:12", True
    ),
    Layout(
        "backtick",
        {"Dockerfile": "# escape=`\nFROM debian:12\nENV A=b `\n C=d\n"},
        "Dockerfile",
        "debian:12",
        True,
    ),
    Layout(
        "stage of a stage",
        {"Dockerfile": "FROM php:8.3-fpm AS base\nFROM base AS dev\nFROM base AS prod\n"},
        "Dockerfile",
        "php:8.3-fpm",
        True,
    ),
    Layout(
        "dockerfile and code",
        {"Dockerfile": "FROM ruby:3.3\n", "Gemfile": "source 'x'\n"},
        "Dockerfile",
        "ruby:3.3",
        True,
    ),
    Layout(
        "dockerfile elsewhere",
        {"docker/Dockerfile": "FROM debian:12\n", "go.mod": "module a\n\ngo 1.22\n"},
        "go.mod",
        "golang:1.22",
    ),
    Layout(
        "dockerfile of production",
        {
            "Dockerfile.prod": "FROM nginx\n",
            "package.json": '{"name": "app", "scripts": {"build": "tsc"}}',
        },
        "package.json",
        "node:lts",
    ),
    Layout(
        "empty dockerfile",
        {"Dockerfile": "", "package.json": '{"name": "app", "scripts": {"build": "tsc"}}'},
        "package.json",
        "node:lts",
    ),
    Layout(
        "a dockerfile that is none",
        {
            "Dockerfile": "hello there\n",
            "package.json": '{"name": "app", "scripts": {"build": "tsc"}}',
        },
        "package.json",
        "node:lts",
    ),
    Layout(
        "a folder named Dockerfile",
        {"Dockerfile/README": "x", "package.json": '{"name": "app", "scripts": {"build": "tsc"}}'},
        "package.json",
        "node:lts",
    ),
    Layout(
        "dockerfile and dev container",
        {"Dockerfile": "FROM debian:12\n", ".devcontainer/devcontainer.json": '{"image": "dev:1"}'},
        "Dockerfile",
        "debian:12",
        True,
    ),
    Layout(
        "compose beside",
        {"Dockerfile": "FROM node:22\n", "docker-compose.yml": "services: {}\n"},
        "Dockerfile",
        "node:22",
        True,
    ),
    Layout(
        "only compose",
        {"compose.yaml": "services:\n  db:\n    image: postgres\n"},
        "",
        "debian:stable",
    ),
    Layout(
        "dev image",
        {".devcontainer/devcontainer.json": '{"image": "dev:1"}'},
        ".devcontainer/devcontainer.json",
        "dev:1",
    ),
    Layout(
        "dev image at the root",
        {".devcontainer.json": '{"image": "dev:2"}'},
        ".devcontainer.json",
        "dev:2",
    ),
    Layout(
        "dev folder",
        {".devcontainer/python/devcontainer.json": '{"image": "dev:3"}'},
        ".devcontainer/python/devcontainer.json",
        "dev:3",
    ),
    Layout(
        "dev build",
        {
            ".devcontainer/devcontainer.json": '{"build": {"dockerfile": "Dockerfile"}}',
            ".devcontainer/Dockerfile": "FROM debian:12\n",
        },
        ".devcontainer/devcontainer.json",
        "debian:12",
        True,
    ),
    Layout(
        "dev build of the root",
        {
            ".devcontainer/devcontainer.json": '{"build": '
            '{"dockerfile": "../Dev.Dockerfile", "context": ".."}}',
            "Dev.Dockerfile": "FROM debian:11\n",
        },
        ".devcontainer/devcontainer.json",
        "debian:11",
        True,
    ),
    Layout(
        "dev old form",
        {
            ".devcontainer/devcontainer.json": '{"dockerFile": "Dockerfile"}',
            ".devcontainer/Dockerfile": "FROM debian:12\n",
        },
        ".devcontainer/devcontainer.json",
        "debian:12",
        True,
    ),
    Layout(
        "dev with comments",
        {
            ".devcontainer/devcontainer.json": "// why\n"
            '{"image": "dev:4", /* x */ "features": {},}\n'
        },
        ".devcontainer/devcontainer.json",
        "dev:4",
    ),
    Layout(
        "dev with a mark",
        {".devcontainer/devcontainer.json": '\ufeff{"image": "dev:5"}'},
        ".devcontainer/devcontainer.json",
        "dev:5",
    ),
    Layout(
        "dev and code",
        {
            ".devcontainer/devcontainer.json": '{"image": "dev:6"}',
            "Cargo.toml": "[package]\nname='a'\n",
        },
        ".devcontainer/devcontainer.json",
        "dev:6",
    ),
    Layout(
        "dev compose",
        {
            ".devcontainer/devcontainer.json": '{"dockerComposeFile": "c.yml", "service": "app"}',
            ".devcontainer/c.yml": "",
        },
        ".devcontainer/devcontainer.json",
        "",
    ),
    Layout(
        "dev broken, with code",
        {
            ".devcontainer/devcontainer.json": "{",
            "package.json": '{"name": "app", "scripts": {"build": "tsc"}}',
        },
        "package.json",
        "node:lts",
    ),
    Layout(
        "npm",
        {"package.json": '{"name": "app", "scripts": {"build": "tsc"}}', "package-lock.json": "{}"},
        "package.json",
        "node:lts",
    ),
    Layout(
        "npm of a version",
        {"package.json": '{"name": "app", "scripts": {"build": "tsc"}}', ".nvmrc": "20\n"},
        "package.json",
        "node:20",
    ),
    Layout(
        "npm engines", {"package.json": '{"engines": {"node": ">=18"}}'}, "package.json", "node:lts"
    ),
    Layout(
        "yarn",
        {"package.json": '{"name": "app", "scripts": {"build": "tsc"}}', "yarn.lock": ""},
        "package.json",
        "node:lts",
    ),
    Layout(
        "pnpm workspace",
        {
            "package.json": '{"name": "app", "scripts": {"build": "tsc"}}',
            "pnpm-lock.yaml": "",
            "pnpm-workspace.yaml": "packages: [a]\n",
        },
        "package.json",
        "node:lts",
    ),
    Layout(
        "bun",
        {"package.json": '{"name": "app", "scripts": {"build": "tsc"}}', "bun.lockb": ""},
        "package.json",
        "node:lts",
    ),
    Layout("deno", {"deno.json": "{}"}, "deno.json", "debian:stable"),
    Layout(
        "typescript",
        {"package.json": '{"name": "app", "scripts": {"build": "tsc"}}', "tsconfig.json": "{}"},
        "package.json",
        "node:lts",
    ),
    Layout(
        "monorepo of npm",
        {
            "package.json": '{"workspaces": ["packages/*"]}',
            "packages/a/package.json": '{"name": "app", "scripts": {"build": "tsc"}}',
        },
        "package.json",
        "node:lts",
    ),
    Layout(
        "python project",
        {"pyproject.toml": "[project]\nname='a'\nrequires-python='>=3.11'\n"},
        "pyproject.toml",
        "python:3",
    ),
    Layout(
        "python of a version",
        {"pyproject.toml": "[project]\nname='a'\n", ".python-version": "3.10\n"},
        "pyproject.toml",
        "python:3.10",
    ),
    Layout("requirements", {"requirements.txt": "flask\n"}, "requirements.txt", "python:3"),
    Layout(
        "requirements of several",
        {"requirements.txt": "flask\n", "requirements-dev.txt": "pytest\n"},
        "requirements.txt",
        "python:3",
    ),
    Layout(
        "setup.py", {"setup.py": "from setuptools import setup\nsetup()\n"}, "setup.py", "python:3"
    ),
    Layout("setup.cfg", {"setup.cfg": "[metadata]\n", "setup.py": ""}, "setup.py", "python:3"),
    Layout(
        "poetry",
        {"pyproject.toml": "[tool.poetry]\nname='a'\n", "poetry.lock": ""},
        "pyproject.toml",
        "python:3",
    ),
    Layout(
        "uv",
        {"pyproject.toml": "[project]\nname='a'\n", "uv.lock": ""},
        "pyproject.toml",
        "python:3",
    ),
    Layout("pipenv", {"Pipfile": "[packages]\n", "Pipfile.lock": "{}"}, "Pipfile", "python:3"),
    Layout(
        "conda", {"environment.yml": "dependencies: [python]\n"}, "environment.yml", "debian:stable"
    ),
    Layout(
        "runtime.txt",
        {"requirements.txt": "x\n", "runtime.txt": "python-3.9.1\n"},
        "requirements.txt",
        "python:3.9.1",
    ),
    Layout("cargo", {"Cargo.toml": "[package]\nname='a'\n"}, "Cargo.toml", "rust:1"),
    Layout(
        "cargo of a toolchain",
        {
            "Cargo.toml": "[package]\nname='a'\n",
            "rust-toolchain.toml": "[toolchain]\nchannel='1.75'\n",
        },
        "Cargo.toml",
        "rust:1.75",
    ),
    Layout(
        "cargo workspace",
        {"Cargo.toml": "[workspace]\nmembers=['a']\n", "a/Cargo.toml": "[package]\nname='a'\n"},
        "Cargo.toml",
        "rust:1",
    ),
    Layout("go", {"go.mod": "module a\n\ngo 1.22\n"}, "go.mod", "golang:1.22"),
    Layout(
        "go workspace",
        {"go.work": "go 1.22\nuse ./a\n", "a/go.mod": "module a\n\ngo 1.21\n"},
        "go.work",
        "golang:1.22",
    ),
    Layout("maven", {"pom.xml": "<project/>"}, "pom.xml", "eclipse-temurin:21-jdk"),
    Layout(
        "maven with a wrapper",
        {"pom.xml": "<project/>", "mvnw": "#!/bin/sh\n"},
        "pom.xml",
        "eclipse-temurin:21-jdk",
    ),
    Layout("gradle", {"build.gradle": "", "gradlew": ""}, "build.gradle", "eclipse-temurin:21-jdk"),
    Layout(
        "gradle of kotlin",
        {"build.gradle.kts": "", "settings.gradle.kts": ""},
        "build.gradle.kts",
        "eclipse-temurin:21-jdk",
    ),
    Layout(
        "java of a version",
        {"pom.xml": "<project/>", ".java-version": "17\n"},
        "pom.xml",
        "eclipse-temurin:17-jdk",
    ),
    Layout("sbt", {"build.sbt": 'scalaVersion := "3.3"\n'}, "build.sbt", "debian:stable"),
    Layout(
        "bundler", {"Gemfile": "source 'x'\n", ".ruby-version": "3.2.2\n"}, "Gemfile", "ruby:3.2.2"
    ),
    Layout("gem", {"a.gemspec": ""}, "a.gemspec", "ruby:3"),
    Layout(
        "composer", {"composer.json": '{"require": {"php": ">=8.2"}}'}, "composer.json", "php:8-cli"
    ),
    Layout("dotnet", {"a.csproj": "<Project/>"}, "a.csproj", "debian:stable"),
    Layout(
        "dotnet solution", {"a.sln": "", "src/a.csproj": "<Project/>"}, "a.sln", "debian:stable"
    ),
    Layout("elixir", {"mix.exs": ""}, "mix.exs", "elixir:1"),
    Layout("haskell", {"a.cabal": ""}, "a.cabal", "haskell:latest"),
    Layout("stack", {"stack.yaml": ""}, "stack.yaml", "haskell:latest"),
    Layout("cmake", {"CMakeLists.txt": "project(a)\n"}, "CMakeLists.txt", "debian:stable"),
    Layout("make", {"Makefile": "all:\n"}, "Makefile", "debian:stable"),
    Layout("meson", {"meson.build": "project('a')\n"}, "meson.build", "debian:stable"),
    Layout("swift", {"Package.swift": ""}, "Package.swift", "swift:latest"),
    Layout("dart", {"pubspec.yaml": "name: a\n"}, "pubspec.yaml", "dart:stable"),
    Layout("clojure", {"project.clj": ""}, "project.clj", "clojure:latest"),
    Layout("julia", {"Project.toml": "name='A'\n"}, "Project.toml", "julia:latest"),
    Layout("r", {"DESCRIPTION": "Package: a\n"}, "", "debian:stable"),
    Layout("perl", {"cpanfile": ""}, "cpanfile", "perl:5"),
    Layout("zig", {"build.zig": ""}, "build.zig", "debian:stable"),
    Layout(
        "tool versions",
        {
            ".tool-versions": "nodejs 20.1.0\npython 3.12.1\n",
            "package.json": '{"name": "app", "scripts": {"build": "tsc"}}',
        },
        "package.json",
        "node:20.1.0",
    ),
    Layout(
        "mise",
        {
            "mise.toml": "[tools]\nnode='22'\n",
            "package.json": '{"name": "app", "scripts": {"build": "tsc"}}',
        },
        "package.json",
        "node:22",
    ),
    Layout(
        "two languages",
        {
            "package.json": '{"name": "app", "scripts": {"build": "tsc"}}',
            "pyproject.toml": "[project]\nname='a'\n",
        },
        "package.json",
        "debian:stable",
    ),
    Layout(
        "code in a folder",
        {
            "backend/go.mod": "module a\n\ngo 1.22\n",
            "frontend/package.json": '{"name": "app", "scripts": {"build": "tsc"}}',
        },
        "backend/go.mod",
        "debian:stable",
    ),
    Layout("nothing", {}, "", "debian:stable"),
    Layout("documents", {"README.md": "", "docs/a.md": "", "LICENSE": ""}, "", "debian:stable"),
    Layout("a script", {"run.sh": "#!/bin/sh\n"}, "", "debian:stable"),
    Layout("broken package.json", {"package.json": "{"}, "package.json", "node:lts"),
]
