"""The attempts, a file for each kind. Importing them all fills `REGISTRY`."""

from tests.runtimes.escapes.catalogue import (
    cgroups,
    devices,
    environment,
    ioctls,
    ipc,
    kernel,
    keys,
    links,
    mounts,
    namespaces,
    paths,
    privileges,
    proc,
    processes,
    sockets,
)

MODULES = (
    paths,
    links,
    proc,
    mounts,
    namespaces,
    processes,
    sockets,
    keys,
    ioctls,
    privileges,
    devices,
    kernel,
    cgroups,
    ipc,
    environment,
)

__all__ = ["MODULES"]
