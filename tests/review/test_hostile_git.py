"""Hostile git content in a space and in a project: it lands or is refused, and nothing of it runs.

Each kind plants a command that leaves a mark, on the machine and in the space, or content that git
or our own reader could trip over. Then the work is looked at, taken out in every way, and removed.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from carrel.app.service import Services, open_service
from carrel.config import Settings
from carrel.domain.access import LOCAL
from carrel.domain.errors import CarrelError
from carrel.domain.projects import Project, ProjectKind
from carrel.domain.review import ExportFormat, ExportRequest
from carrel.domain.spaces import Space, SpaceRequest
from carrel.domain.trees import ReviewQuery
from carrel.service.diffs import DiffRequest
from carrel.trees.folders import Root
from tests.etc import share_etc
from tests.folders import remove_folder
from tests.launchers import forked_launchers
from tests.load.clearing import end_everything
from tests.review.conftest import Repository, land, work
from tests.sampling import every

pytestmark = pytest.mark.asyncio(loop_scope="module")
OPERATION_S = 60.0
"""Each takes a tenth of a second; a loaded machine may need more."""

# ruff: noqa: E501

CONFIGURED = {
    "core.fsmonitor": '[core]\nfsmonitor = "$BAD"',
    "core.pager": '[core]\npager = "$BAD"\n[pager]\ndiff = "$BAD"\nlog = "$BAD"\nshow = "$BAD"',
    "core.editor": '[core]\neditor = "$BAD"\n[sequence]\neditor = "$BAD"',
    "core.askPass": '[core]\naskPass = "$BAD"\n[credential]\nhelper = "!$BAD"',
    "core.sshCommand": '[core]\nsshCommand = "$BAD"\n[remote "origin"]\nurl = ssh://x/y',
    "core.gitProxy": '[core]\ngitProxy = "$PROGRAM"\n[remote "origin"]\nurl = git://localhost:1/x',
    "core.alternateRefsCommand": '[core]\nalternateRefsCommand = "$BAD"',
    "core.worktree": "[core]\nworktree = /etc\nbare = true",
    "filter.clean": '[filter "x"]\nclean = "$BAD"\nrequired = true',
    "filter.smudge": '[filter "x"]\nsmudge = "$BAD"\nrequired = true',
    "filter.process": '[filter "x"]\nprocess = "$BAD"\nrequired = true',
    "diff.external": '[diff]\nexternal = "$BAD"',
    "diff.command": '[diff "x"]\ncommand = "$BAD"',
    "diff.textconv": '[diff "x"]\ntextconv = "$BAD"\ncachetextconv = true',
    "merge.driver": '[merge "x"]\ndriver = "$BAD"\n[merge]\ndefault = x',
    "difftool and mergetool": '[difftool "x"]\ncmd = "$BAD"\n[mergetool "x"]\ncmd = "$BAD"',
    "gpg.program": '[gpg]\nprogram = "$PROGRAM"\n[commit]\ngpgSign = true\n[log]\n'
    "showSignature = true",
    "gpg.ssh.defaultKeyCommand": '[gpg]\nformat = ssh\n[gpg "ssh"]\ndefaultKeyCommand = "$BAD"\n'
    'program = "$PROGRAM"\n[commit]\ngpgSign = true',
    "credential.helper": '[credential]\nhelper = "!$BAD"\n[remote "origin"]\n'
    "url = http://localhost:1/x",
    "uploadpack.packObjectsHook": '[uploadpack]\npackObjectsHook = "$PROGRAM"',
    "aliases": '[alias]\ndiff = "!$BAD"\nmerge-tree = "!$BAD"\nfast-import = "!$BAD"\nx = "!$BAD"',
    "include.path": "[include]\npath = ../hostile.conf",
    "include.path out": "[include]\npath = /etc/shadow",
    "includeIf": '[includeIf "gitdir:/"]\npath = ../hostile.conf\n[includeIf "onbranch:**"]\n'
    "path = ../hostile.conf",
    "url.insteadOf": '[url "ext::$BAD"]\ninsteadOf = /\ninsteadOf = ""\n[protocol "ext"]\n'
    "allow = always",
    "ext remote": '[remote "origin"]\nurl = "ext::$BAD"\n[protocol]\nallow = always\n'
    '[protocol "ext"]\nallow = always',
    "remote.vcs": '[remote "origin"]\nvcs = ext\nurl = "$BAD"\n[protocol "ext"]\nallow = always',
    "remote.uploadpack": '[remote "origin"]\nurl = .\nuploadpack = "$BAD #"\n'
    'receivepack = "$BAD #"',
    "a promisor": "[core]\nrepositoryformatversion = 1\n[extensions]\npartialClone = origin\n"
    '[remote "origin"]\nurl = "ext::$BAD"\npromisor = true\nuploadpack = "$BAD #"\n'
    '[protocol "ext"]\nallow = always',
    "bundle-uri": "[fetch]\nbundleURI = /etc/passwd\n[transfer]\nbundleURI = true",
    "trailers": '[trailer "x"]\ncommand = "$BAD"\ncmd = "$BAD"\nifmissing = add',
    "interactive.diffFilter": '[interactive]\ndiffFilter = "$BAD"',
    "tar and browsers": '[tar "tar"]\ncommand = "$BAD"\n[web]\nbrowser = x\n[browser "x"]\n'
    'cmd = "$BAD"\n[man]\nviewer = x\n[man "x"]\ncmd = "$BAD"',
    "maintenance": '[gc]\nauto = 1\nautoPackLimit = 1\nrecentObjectsHook = "$BAD"\n'
    "[maintenance]\nauto = true",
    "an unknown format": "[core]\nrepositoryformatversion = 99\n[extensions]\nx = y",
    "no configuration": "[core\nx = = =\n\\",
}
"""What is appended to `.git/config`; attributes name `x` for every file."""
ALONE = (
    *("core.fsmonitor", "core.worktree", "filter.process", "merge.driver", "include.path out"),
    *("url.insteadOf", "a promisor", "an unknown format", "no configuration"),
)
"""Those that would keep git from the others, or are the likeliest to run."""

PLANTED = {
    "core.hooksPath": 'mkdir bad; hooks bad; config "[core]" "hooksPath = $PWD/bad"',
    "hooks of every name": "mkdir -p .git/hooks; hooks .git/hooks",
    "config.worktree": 'config "[extensions]" "worktreeConfig = true";'
    ' printf \'[core]\\nfsmonitor = "%s"\\n\' "$BAD" > .git/config.worktree',
    "core.attributesFile": 'echo "* filter=x diff=x merge=x" > at; config "[core]"'
    ' "attributesFile = $PWD/at" "[filter \\"x\\"]" "clean = \\"$BAD\\""',
    "info/attributes": 'mkdir -p .git/info; echo "* filter=x diff=x merge=x" > .git/info/attributes;'
    ' config "[merge \\"x\\"]" "driver = \\"$BAD\\"" "[diff \\"x\\"]" "command = \\"$BAD\\""',
    "attributes in the tree": "printf '[attr]m filter=x diff=x\\n*.py m\\n* ident export-subst"
    " working-tree-encoding=UTF-16 eol=crlf\\n' > .gitattributes",
    "attributes as a link": "ln -s /etc/passwd .gitattributes",
    "attributes without an end": "head -c 3000000 /dev/zero | tr '\\0' 'a' > .gitattributes",
    "a filter of the project's name": "echo '*.dat filter=lfs diff=lfs merge=lfs' >"
    " .gitattributes; echo x > x.dat",
    "a pointer to a large file": "printf 'version https://git-lfs.github.com/spec/v1\\noid sha256:"
    "%064d\\nsize 1\\n' 0 > large; echo '[lfs]' > .lfsconfig; echo 'url = file:///etc' >> .lfsconfig",
    "git's folder is a file": "mv .git real; printf 'gitdir: real\\n' > .git",
    "git's folder is elsewhere": "rm -rf .git; printf 'gitdir: /root/.git\\n' > .git",
    "git's folder is a link": "mv .git real; ln -s real .git",
    "git's folder is a link out": "rm -rf .git; ln -s /etc .git",
    "git's folder is a pipe": "rm -rf .git; mkfifo .git",
    "git's folder is gone": "rm -rf .git",
    "git's folder is another": "rm -rf .git; git init -q -b main; git add -A; $G commit -qm new",
    "commondir": "mkdir c; cp -r .git/. c; printf '../c\\n' > .git/commondir",
    "commondir out": "printf '/etc\\n' > .git/commondir",
    "linked worktrees": "git worktree add -q ../wt 2> /dev/null || :; mkdir -p .git/worktrees/w;"
    " printf '/etc/x/.git\\n' > .git/worktrees/w/gitdir; printf '/\\n' > .git/worktrees/w/commondir",
    "alternates": "mkdir -p .git/objects/info; printf '/etc\\n../../..\\n.\\n' >"
    ' .git/objects/info/alternates; config \'[core]\' "alternateRefsCommand = \\"$BAD\\""',
    "http alternates": "echo http://localhost:1/ > .git/objects/info/http-alternates",
    "objects are a link out": "rm -rf .git/objects; ln -s /etc .git/objects",
    "objects are pipes": "rm -f .git/objects/??/*; for d in .git/objects/??; do"
    " mkfifo $d/00000000000000000000000000000000000000; done",
    "an index that lies": "printf 'DIRC\\0\\0\\0\\2\\377\\377\\377\\377' > .git/index",
    "an index with extensions": "printf 'DIRC\\0\\0\\0\\2\\0\\0\\0\\0FSMN\\377\\377\\377\\377link"
    "\\0\\0\\0\\24' > .git/index",
    "a split index": "git update-index --split-index; rm .git/sharedindex.*; ln -s /etc/passwd"
    " .git/sharedindex.$(printf '%040d' 0)",
    "a sparse index": "git sparse-checkout set --cone --sparse-index src",
    "an index that is a pipe": "rm .git/index; mkfifo .git/index",
    "an index that is a link": "ln -sf /etc/shadow .git/index",
    "locks": "touch .git/index.lock .git/HEAD.lock .git/refs/heads/main.lock .git/config.lock",
    "HEAD is a pipe": "rm .git/HEAD; mkfifo .git/HEAD",
    "HEAD is a link": "ln -sf /etc/passwd .git/HEAD",
    "HEAD leads out": "echo 'ref: refs/../../../../etc/passwd' > .git/HEAD",
    "HEAD names itself": "echo 'ref: refs/heads/a' > .git/HEAD;"
    " echo 'ref: refs/heads/a' > .git/refs/heads/a",
    "HEAD is noise": "head -c 100000 /dev/urandom > .git/HEAD",
    "HEAD is an option": "echo 'ref: refs/heads/--upload-pack=x' > .git/HEAD; git rev-parse main >"
    " '.git/refs/heads/--upload-pack=x'",
    "branches with odd names": "for n in '$(touch x)' '-x' 'a;b' '@{-1}' \"$(printf 'a\\033[2Jb')\";"
    ' do git rev-parse main > ".git/refs/heads/$n"; done',
    "refs are links": "rm -rf .git/refs/heads; ln -s /etc .git/refs/heads",
    "packed refs that lie": "rm .git/refs/heads/main; printf '# pack-refs with: peeled sorted\\n^x\\n"
    "0 refs/heads/main\\n%040d refs/heads/main\\n' 0 > .git/packed-refs",
    "many packed refs": "rm .git/refs/heads/main; seq -f '%040.0f refs/heads/x' 1 300000 >"
    " .git/packed-refs",
    "replaced objects": "o=$(git rev-parse HEAD~1); n=$(git rev-parse HEAD);"
    " mkdir -p .git/refs/replace; echo $o > .git/refs/replace/$n",
    "a cycle of replaced commits": "o=$(git rev-parse HEAD~1); n=$(git rev-parse HEAD);"
    " mkdir -p .git/refs/replace; echo $n > .git/refs/replace/$o",
    "grafts": "o=$(git rev-parse HEAD~1); n=$(git rev-parse HEAD); mkdir -p .git/info;"
    " echo $o $n > .git/info/grafts",
    "a shallow history": "o=$(git rev-parse HEAD); echo $o > .git/shallow",
    "a promised pack": "git gc -q; for p in .git/objects/pack/*.pack; do : > ${p%pack}promisor;"
    ' rm -f $p; done; config "[core]" "repositoryformatversion = 1" "[extensions]"'
    ' "partialClone = origin" \'[remote "origin"]\' promisor=true "url = \\"ext::$BAD\\""'
    ' "[protocol]" "allow = always"',
    "submodules that run": "mkdir sub; git init -q sub; printf '[core]\\nfsmonitor = \"%s\"\\n'"
    ' "$BAD" >> sub/.git/config; hooks sub/.git/hooks; echo x > sub/x; printf'
    ' \'[submodule "x"]\\npath = sub\\nurl = -u%s\\nupdate = !%s\\n\' "$BAD" "$BAD" >'
    " .gitmodules",
    "submodules that lead out": 'printf \'[submodule "../../hooks"]\\npath = ../x\\n'
    'url = ext::%s\\n\' "$BAD" > .gitmodules; mkdir -p .git/modules/../modules/x; echo x > .git/m',
    "submodules as a link": "ln -s .git/config .gitmodules",
    "a submodule in the index": "git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),"
    "sub; $G commit -qm sub",
    "a link out": "ln -s /etc/passwd out; git add out; $G commit -qm out",
    "a link into git": "ln -s .git/hooks hooks; git add hooks; $G commit -qm hooks",
    "a file through a link": "mv src real; ln -s real src; mkdir -p real/deep; echo x > real/deep/x;"
    " git add -A; $G commit -qm link",
    "twins": "echo x > A.TXT; mkdir SRC; echo y > SRC/b.py; git add -A; $G commit -qm twins",
    "names that other systems fold": "mkdir .g$(printf '\\342\\200\\214')it; echo x >"
    " .g$(printf '\\342\\200\\214')it/config; mkdir '.git '; echo x > '.git /config'",
    "names of other systems' streams": "mkdir '.git::$INDEX_ALLOCATION'; echo x >"
    " '.git::$INDEX_ALLOCATION/config'; echo x > 'a:b'; echo x > CON; echo x > 'x.'",
    "names with newlines": "touch \"$(printf 'a\\nb')\" \"$(printf 'x\\nD a.txt')\"; git add -A;"
    " $G commit -qm names",
    "names that are no text": "touch \"$(printf '\\377\\376')\" -- --output=x; git add -A;"
    " $G commit -qm names",
    "pipes and sockets among the files": "mkfifo pipe; rm a.txt; mkfifo a.txt",
    "a message that git would read": "$G commit -q --allow-empty -m 'x\n\n---\ndiff --git a/x b/x\n"
    "From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001'",
    "a tag as a commit": "$G tag -am t t; o=$(git rev-parse t); echo $o > .git/refs/heads/main",
    "a file as a commit": "o=$(git rev-parse main:a.txt); echo $o > .git/refs/heads/main",
    "a folder as a commit": "o=$(git rev-parse 'main^{tree}'); echo $o > .git/refs/heads/main",
}
"""Scripts that run in the space."""

CRAFTED = {
    "an object under another's name": "go(commit(TREE)); put(b'tree', b'', TREE)",
    "a commit under another's name": "put(b'commit', b'tree ' + TREE.encode() + b'\\n', HEAD)",
    "an object that inflates": "put_raw(HEAD, zlib.compress(b'commit 99\\0' + bytes(200 << 20), 9))",
    "an object that lies about its size": "put_raw(HEAD, zlib.compress(b'commit 99999999999999\\0x'))",
    "a size without an end": "put_raw(HEAD, zlib.compress(b'commit ' + b'9' * 100000 + b'\\0'))",
    "half an object": "put_raw(HEAD, zlib.compress(b'commit 9\\0123456789')[:9])",
    "an object that is no zlib": "put_raw(HEAD, b'\\0' * 1000)",
    "a pack that tells by itself": "pack([(7, bytes.fromhex(HEAD), b'\\x05\\x05\\x90\\x05')])",
    "a pack of differences": "pack([(3, b'', b'x' * 100)] + [(6, bytes([20]), delta(1 << 20))] * 60)",
    "a pack whose index lies": "pack([(3, b'', b'x')], at=1 << 31)",
    "an index of packs that lies": "write('pack/multi-pack-index', b'MIDX\\1\\1\\4\\0' + bytes(99));"
    " write('info/commit-graph', b'CGPH\\1\\1\\3\\0' + b'\\xff' * 99)",
    "entries twice": "go(commit(tree(e(b'100644', b'a', BLOB), e(b'120000', b'a', BLOB))))",
    "git's folder": "go(commit(tree(e(b'40000', b'.git', tree(e(b'100755', b'hooks', BLOB))))))",
    "git's folder, short": "go(commit(tree(e(b'40000', b'GIT~1', TREE))))",
    "git's folder, folded": "go(commit(tree(e(b'40000', b'.g\\xe2\\x80\\x8cit', TREE))))",
    "git's folder, with a stream": "go(commit(tree(e(b'40000', b'.git::$INDEX_ALLOCATION', TREE))))",
    "the folder above": "go(commit(tree(e(b'40000', b'..', TREE))))",
    "this folder": "go(commit(tree(e(b'40000', b'.', TREE))))",
    "a name with slashes": "go(commit(tree(e(b'100644', b'a/../../b', BLOB))))",
    "an empty name": "go(commit(tree(e(b'100644', b'', BLOB))))",
    "a name of a megabyte": "go(commit(tree(e(b'100644', b'n' * (1 << 20), BLOB))))",
    "a name with a newline": "go(commit(tree(e(b'100644', b'a\\nD b', BLOB))))",
    "a name with a quote": "go(commit(tree(e(b'100644', b'a\"\\\\b', BLOB))))",
    "odd modes": "go(commit(tree(e(b'100666', b'a', BLOB), e(b'104755', b'b', BLOB),"
    " e(b'20666', b'c', BLOB), e(b'777777', b'd', BLOB))))",
    "a mode that is none": "go(commit(tree(e(b'0', b'a', BLOB), e(b'-1', b'b', BLOB))))",
    "a file as a folder": "go(commit(tree(e(b'40000', b'a', BLOB))))",
    "a folder as a file": "go(commit(tree(e(b'100644', b'a', TREE))))",
    "a gitlink": "go(commit(tree(e(b'160000', b'a', HEAD))))",
    "a link out, committed": "go(commit(tree(e(b'120000', b'a', put(b'blob', b'/etc/passwd')))))",
    "a link with a zero": "go(commit(tree(e(b'120000', b'a', put(b'blob', b'a\\0/etc')))))",
    "an endless link": "go(commit(tree(e(b'120000', b'a', put(b'blob', b'a/' * 99999)))))",
    "modules that run": "go(commit(tree(e(b'100644', b'.gitmodules', put(b'blob',"
    " b'[submodule \"x\"]\\npath=x\\nurl=-u./bad\\nupdate=!touch x\\n')))))",
    "modules by another name": "go(commit(tree(e(b'120000', b'.gitmodules', put(b'blob', b'a')))))",
    "folders without an end": "go(commit(deep(2500)))",
    "a bomb of folders": "go(commit(wide(10)))",
    "a bomb of equal names": "go(commit(wide(10), HEAD)); go(commit(TREE, now())); go(commit(wide(9), now()))",
    "a folder that is cut off": "go(commit(put(b'tree', b'100644 a\\0abc')))",
    "a folder that is missing": "go(commit('1' * 40))",
    "a parent that is missing": "go(commit(TREE, '1' * 40))",
    "many parents": "go(commit(TREE, *[HEAD] * 5000))",
    "the same parent twice": "go(commit(TREE, HEAD, HEAD))",
    "a zero in a header": "go(commit(TREE, author=b'a\\0b <m> 1 +0000'))",
    "a zero in a message": "go(commit(TREE, message=b'a\\0b'))",
    "a header of a megabyte": "go(commit(TREE, extra=b'x ' + b'y' * 900000 + b'\\n'))",
    "a header within a header": "go(commit(TREE, author=b'a <b> 1 +0000\\nparent ' + HEAD.encode()))",
    "no author": "go(commit(TREE, author=b''))",
    "an author of brackets": "go(commit(TREE, author=b'<><> <<>> 1 +0000'))",
    "an author of escapes": "go(commit(TREE, author=b'\\x1b]0;x\\x07 <-u> 1 +0000'))",
    "a date of another age": "go(commit(TREE, author=b'a <b> 999999999999 +9999'))",
    "a date with zeros": "go(commit(TREE, author=b'a <b> 000000000001 -0000'))",
    "an encoding that is a path": "go(commit(TREE, extra=b'encoding ../../../x\\n'))",
    "an encoding that is none": "go(commit(TREE, extra=b'encoding UTF-7\\n', message=b'\\xff\\xfe+ADw-'))",
    "a signature": "go(commit(TREE, extra=b'gpgsig -----BEGIN PGP SIGNATURE-----\\n x\\n'))",
    "a merge tag": "go(commit(TREE, extra=b'mergetag object ' + HEAD.encode() + b'\\n type commit\\n'))",
    "no message": "go(commit(TREE, message=b''))",
    "a message of two megabytes": "go(commit(TREE, message=b'm' * (2 << 20)))",
    "a commit that is its own parent": "put(b'commit', open_commit(HEAD), HEAD); go(HEAD)",
}
"""Objects that no git would make: code that runs in the space."""

PROJECTS = {
    **{name: CONFIGURED[name] for name in (
        "core.fsmonitor", "core.alternateRefsCommand", "filter.clean", "filter.process",
        "diff.external", "diff.textconv", "merge.driver", "gpg.program", "aliases",
        "uploadpack.packObjectsHook", "url.insteadOf", "ext remote", "a promisor", "maintenance",
    )},
    "core.hooksPath": '[core]\nhooksPath = "$HOOKS"',
    "a writer of logs": '[user]\nname = "$BAD"\n[core]\nlogAllRefUpdates = always',
    "a sparse index": "[core]\nsparseCheckout = true\n[index]\nsparse = true",
    "fsck is off": "[fsck]\nskipList = /etc/passwd\n[receive]\nfsckObjects = false",
}  # fmt: skip
"""What the project's own configuration has."""

HOOKS = (
    *("applypatch-msg", "commit-msg", "fsmonitor-watchman", "post-applypatch", "post-checkout"),
    *("post-commit", "post-index-change", "post-merge", "post-receive", "post-rewrite"),
    *("post-update", "pre-applypatch", "pre-auto-gc", "pre-commit", "pre-merge-commit"),
    *("pre-push", "pre-rebase", "pre-receive", "prepare-commit-msg", "proc-receive"),
    *("push-to-checkout", "reference-transaction", "sendemail-validate", "update"),
)

BEGIN = """set -e
FIRED="$PWD/fired.log"; BAD="touch {mark} $FIRED"; G="git -c user.name=n -c user.email=m"
PROGRAM="$PWD/.git/program"; printf '#!/bin/sh\\n%s\\n' "$BAD" > "$PROGRAM"; chmod +x "$PROGRAM"
hooks() {{ for hook in {hooks}; do cp "$PROGRAM" "$1/$hook"; done; }}
config() {{ printf '%s\\n' "$@" >> .git/config; }}
echo work > work.txt; git add work.txt; $G commit -qm work; echo rest >> a.txt
"""
CONFIGURE = """
echo '* filter=x diff=x merge=x' > .gitattributes
printf '[core]\\nfsmonitor = "%s"\\n' "$BAD" > hostile.conf
cat >> .git/config <<END
{text}
END
"""
CRAFT = r"""
cat > .git/craft.py <<'END'
import hashlib, os, struct, zlib
def write(name, content):
    path = f".git/objects/{name}"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.lexists(path): os.unlink(path)
    open(path, "wb").write(content)
def put_raw(oid, content): write(f"{oid[:2]}/{oid[2:]}", content)
def put(kind, content, oid=""):
    raw = kind + b" %d\0" % len(content) + content
    oid = oid or hashlib.sha1(raw).hexdigest()
    put_raw(oid, zlib.compress(raw, 1))
    return oid
def e(mode, name, oid): return mode + b" " + name + b"\0" + bytes.fromhex(oid)
def tree(*entries): return put(b"tree", b"".join(entries))
def now(): return open(".git/refs/heads/main").read().strip()
def go(oid): open(".git/refs/heads/main", "w").write(oid + "\n")
def commit(tree, *parents, author=b"a <b> 1 +0000", extra=b"", message=b"m\n"):
    above = b"".join(b"parent %s\n" % one.encode() for one in parents or (HEAD,))
    head = b"tree %s\n%sauthor %s\ncommitter c <d> 1 +0000\n%s\n" % (
        tree.encode(), above, author, extra)
    return put(b"commit", head + message)
def open_commit(oid):
    return b"tree %s\nparent %s\nauthor a <b> 1 +0000\ncommitter a <b> 1 +0000\n\nx\n" % (
        TREE.encode(), oid.encode())
def deep(count):
    oid = BLOB
    for number in range(count):
        oid = tree(e(b"40000" if number else b"100644", b"d", oid))
    return oid
def wide(depth):
    oid = BLOB
    for number in range(depth):
        mode = b"40000" if number else b"100644"
        oid = tree(*(e(mode, b"d%d" % one, oid) for one in range(10)))
    return oid
def size(kind, length):
    out, length = [kind << 4 | length & 15], length >> 4
    while length:
        out[-1] |= 128
        out.append(length & 127); length >>= 7
    return bytes(out)
def delta(length): return b"\x64" + b"\x80\x80\x40" + b"\x90\x64" * (length // 100)
def pack(objects, at=None):
    body = b"PACK" + struct.pack(">II", 2, len(objects))
    places = []
    for kind, base, content in objects:
        places.append(len(body))
        body += size(kind, len(content)) + base + zlib.compress(content)
    body += hashlib.sha1(body).digest()
    names = sorted([bytes.fromhex(HEAD)] + [bytes([n]) * 20 for n in range(1, len(objects))])
    fan = [sum(name[0] <= n for name in names) for n in range(256)]
    idx = b"\xfftOc" + struct.pack(">I", 2) + struct.pack(">256I", *fan) + b"".join(names)
    idx += bytes(4 * len(names)) + b"".join(
        struct.pack(">I", at or places[-1]) for _ in names) + body[-20:]
    write("pack/pack-x.pack", body); write("pack/pack-x.idx", idx + hashlib.sha1(idx).digest())
    os.unlink(f".git/objects/{HEAD[:2]}/{HEAD[2:]}")
HEAD = now()
BLOB, TREE = put(b"blob", b"x"), tree(e(b"100644", b"a", put(b"blob", b"x")))
"""


WAYS = ("diff", "changes", "patch", "bundle", "commits", "squash")
"""In which work is looked at and taken out."""


def some_ways(kind: str, kinds: Iterable[str]) -> Sequence[str]:
    """In a sample half of them for each kind, each for half of the kinds."""
    return every(2, WAYS, [*kinds].index(kind) % 2)


@dataclass(frozen=True)
class Stage:
    """One service for all kinds, and a project for each of them."""

    services: Services
    folder: Path

    @property
    def mark(self) -> Path:
        return self.folder / "mark"

    def project(self) -> Repository:
        made = Repository(Path(tempfile.mkdtemp(dir=self.folder)))
        subprocess.run(["cp", "-a", f"{self.folder}/template/.", made.path], check=True)
        made.path.chmod(0o755)
        return made

    async def desk(self, project: Repository) -> Space:
        asked = Project(ProjectKind.FOLDER, str(project.path))
        return await self.services.spaces.create(LOCAL, SpaceRequest(asked))

    async def plant(self, space: Space, script: str) -> None:
        begin = BEGIN.format(mark=self.mark, hooks=" ".join(HOOKS))
        await work(self.services, space, f"{begin}{script}\nrm -f fired.log")

    async def everything(
        self, space: Space, project: Repository, names: Sequence[str]
    ) -> dict[str, object]:
        """Each answer, or the error; what is refused leaves the project as it is."""
        found: dict[str, object] = {}
        spaces, services = self.services.spaces, self.services
        ways: dict[str, Callable[[], Awaitable[object]]] = {
            "diff": lambda: self._text(space),
            "changes": lambda: spaces.review(LOCAL, space.space_id, ReviewQuery(most=1000)),
            "patch": lambda: self._export(space, ExportFormat.PATCH),
            "bundle": lambda: self._export(space, ExportFormat.BUNDLE),
            "commits": lambda: land(services, space, branch="commits", commits=True),
            "squash": lambda: land(services, space, branch="main"),
        }
        for name in names:
            before = state_of(project)
            try:
                async with asyncio.timeout(OPERATION_S):
                    found[name] = await ways[name]()
            except CarrelError as error:
                assert error.code and error.message, name
                assert "Traceback" not in error.message, name
                assert state_of(project) == before, name
                found[name] = error
        opened = await self.services.spaces.opened(LOCAL, space.space_id)
        with Root(opened.driver.open_root(opened.tree)) as root:
            assert root.status("fired.log") is None, "it ran in the space"
        return found

    async def _text(self, space: Space) -> object:
        request = DiffRequest(space.space_id)
        pieces = await self.services.operations.review._diffs.text(LOCAL, request)
        return b"".join(await asyncio.to_thread(list, pieces))

    async def _export(self, space: Space, format: ExportFormat) -> object:
        exports = self.services.operations.review._exports
        _, pieces = await exports.export(LOCAL, space.space_id, ExportRequest(format))
        return b"".join(await asyncio.to_thread(list, pieces))

    async def remove(self, space: Space) -> None:
        await self.services.spaces.remove(LOCAL, space.space_id, force=True, grace_s=0.0)
        assert not self.mark.exists(), "it ran on the machine"


def state_of(project: Repository) -> dict[str, bytes | str]:
    """The files of the checkout, and of git's all that says where its branches are."""
    found: dict[str, bytes | str] = {}
    for above, folders, names in os.walk(project.path):
        folders[:] = [name for name in folders if name != "objects"]
        for name in names:
            place = Path(above) / name
            found[str(place)] = os.readlink(place) if place.is_symlink() else place.read_bytes()
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage() -> AsyncIterator[Stage]:
    folder = Path(tempfile.mkdtemp(prefix="carrel-"))
    folder.chmod(0o711)
    template = Repository(folder / "template")
    template.path.mkdir()
    template.git("init", "-q", "-b", "main")
    template.commit("first", a_txt="a\n", src__b_py="print(1)\n", _gitignore="*.log\n*.conf\n")
    share_etc(folder / "data")
    try:
        with forked_launchers():
            async with open_service(Settings(data=folder / "data")) as services:
                yield Stage(services, folder)
    finally:
        await asyncio.to_thread(end_everything, folder / "data")
        await asyncio.to_thread(remove_folder, folder)


async def played(stage: Stage, script: str, ways: Sequence[str] = WAYS) -> None:
    project = stage.project()
    space = await stage.desk(project)
    await stage.plant(space, script)
    found = await stage.everything(space, project, ways)
    landed = [found[name] for name in ("commits", "squash") if name in found]
    if not all(isinstance(one, CarrelError) for one in landed):
        project.git("fsck", "--strict", "--no-dangling")
    await stage.remove(space)


@pytest.mark.parametrize("kind", ["all of the others", *ALONE])
async def test_what_a_space_configures(stage: Stage, kind: str) -> None:
    others = "\n".join(text for name, text in CONFIGURED.items() if name not in ALONE)
    await played(stage, CONFIGURE.format(text=CONFIGURED.get(kind, others)))


@pytest.mark.parametrize("kind", PLANTED)
async def test_what_a_space_has_in_its_git_folder(stage: Stage, kind: str) -> None:
    await played(stage, PLANTED[kind], some_ways(kind, PLANTED))


@pytest.mark.parametrize("kind", CRAFTED)
async def test_objects_that_no_git_makes(stage: Stage, kind: str) -> None:
    script = f"{CRAFT}\n{CRAFTED[kind]}\nEND\npython3 .git/craft.py"
    await played(stage, script, some_ways(kind, CRAFTED))


@pytest.mark.parametrize("kind", PROJECTS)
async def test_what_a_project_configures(stage: Stage, kind: str) -> None:
    project = stage.project()
    hooks = project.path / ".git/hooks"
    hooks.mkdir(exist_ok=True)
    bad = f"touch {stage.mark}"
    for name in (*HOOKS, "program"):
        (hooks / name).write_text(f"#!/bin/sh\n{bad}\n")
        (hooks / name).chmod(0o755)
    (project.path / ".gitattributes").write_text("* filter=x diff=x merge=x\n")
    with (project.path / ".git/config").open("a") as file:
        said = PROJECTS[kind].replace("$BAD", bad).replace("$HOOKS", str(hooks))
        file.write(f"{said.replace('$PROGRAM', str(hooks / 'program'))}\n")
    space = await stage.desk(project)
    await work(stage.services, space, "echo more >> a.txt; echo x > new.txt")
    await stage.everything(space, project, WAYS)
    await stage.remove(space)
