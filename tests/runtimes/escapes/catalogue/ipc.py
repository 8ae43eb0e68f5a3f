"""Shared memory, queues and the shared folders of the host."""

from __future__ import annotations

import ctypes
import os

from tests.runtimes.escapes.inside import USER, Targets, call, escape, open_for_writing, read

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.shmat.restype = ctypes.c_void_p


@escape("ipc.shared_memory", USER)
def shared_memory(targets: Targets) -> str:
    number = call("shmget", targets.shm_key, 0, 0)
    address = LIBC.shmat(number, None, 0)
    return f"read {ctypes.string_at(address, len(targets.marker))!r}"


@escape("ipc.messages", USER)
def messages(targets: Targets) -> str:
    return f"queue {call('msgget', targets.msg_key, 0)}"


@escape("ipc.semaphores", USER)
def semaphores(targets: Targets) -> str:
    return f"set {call('semget', targets.sem_key, 0, 0)}"


@escape("ipc.posix_messages", USER)
def posix_messages(targets: Targets) -> str:
    return f"queue {call('mq_open', targets.queue.encode(), os.O_RDWR)}"


@escape("ipc.posix_shared_memory", USER)
def posix_shared_memory(targets: Targets) -> str:
    return read(targets.planted_shm)


@escape("ipc.temporary_files", USER)
def temporary_files(targets: Targets) -> str:
    return read(targets.planted_tmp)


@escape("ipc.temporary_files_for_writing", USER)
def temporary_files_for_writing(targets: Targets) -> str:
    return open_for_writing(targets.planted_tmp)
