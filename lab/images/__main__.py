"""`python -m lab.images [ARCHIVE]...`: build archives (default: those of `make up`), print their paths."""

from __future__ import annotations

import sys

from lab.capabilities import parts
from lab.images import build_all
from lab.images.catalog import archives
from lab.paths import cache, tools
from lab.steps import LabError


def main(names: list[str]) -> int:
    """Returns the exit status: 0, 1 when a build failed, 64 for an unknown name."""
    of_capabilities = [archive for part in parts().values() for archive in part.archives]
    known = {archive.name: archive for archive in (*archives(), *of_capabilities)}
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"unknown archive: {', '.join(unknown)}; expected one of {', '.join(known)}", file=sys.stderr)
        return 64
    try:
        for path in build_all(cache(), tools(), [known[name] for name in names] or None):
            print(f"{path}  {path.stat().st_size / 1e6:.1f} MB")
    except LabError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
