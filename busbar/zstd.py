"""Zstandard: the module of the standard library from Python 3.14 on, its backport before that."""

import sys

if sys.version_info >= (3, 14):
    from compression.zstd import ZstdError, ZstdFile
else:
    from backports.zstd import ZstdError, ZstdFile

__all__ = ["ZstdError", "ZstdFile"]
