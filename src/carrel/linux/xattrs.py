"""Extended attributes of entries of an open folder, the entry itself and not what it names."""

from __future__ import annotations

import errno
import os

_NONE = frozenset({errno.ENODATA, errno.EOPNOTSUPP, errno.ENOENT, errno.EPERM, errno.EACCES})


def get_xattr(dir_fd: int, name: str, attribute: str) -> bytes | None:
    """None when the entry has no such attribute, or the file system none at all."""
    try:
        return os.getxattr(f"/proc/self/fd/{dir_fd}/{name}", attribute, follow_symlinks=False)
    except OSError as error:
        if error.errno in _NONE:
            return None
        raise
