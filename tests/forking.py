"""Processes that are forked from one that has loaded everything: hundreds would else load the
same for most of a second each."""

from __future__ import annotations

import multiprocessing

forked = multiprocessing.get_context("forkserver")
# One list for all, because there is one server for all.
forked.set_forkserver_preload(["tests.faults.child", "tests.daemon.loaded"])
