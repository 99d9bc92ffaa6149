"""Where what was read differs from what must be read."""

from __future__ import annotations

from typing import Any

BESIDE = {"rows", "lines", "bytes", "sha256", "truncated"}  # keys that an expected object may leave out


def differences(want: Any, got: Any, path: str = "") -> list[str]:
    """Paths at which two JSON values differ."""
    if isinstance(want, dict) and isinstance(got, dict):
        extra = [f"{path}.{k} is not expected" for k in got if k not in {*want, *BESIDE}]
        missing = [f"{path}.{k} is missing" for k in want if k not in got]
        both = [k for k in want if k in got]
        return extra + missing + [d for k in both for d in differences(want[k], got[k], f"{path}.{k}")]
    if isinstance(want, list) and isinstance(got, list) and len(want) == len(got):
        pairs = enumerate(zip(want, got, strict=True))
        return [d for i, (w, g) in pairs for d in differences(w, g, f"{path}[{i}]")]
    return [] if want == got else [f"{path}: want {want!r}, got {got!r}"]
