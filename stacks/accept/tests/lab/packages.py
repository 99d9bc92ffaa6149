"""Tools for hosts of the lab, from Debian packages: those of the fabric, its simulator, and fio."""

import shutil
from pathlib import Path

from lab.build.recipe import key
from lab.hosts.rootfs import BASE, SUITE
from lab.images import tree
from lab.paths import cache

NAMES = ("fio", "ibsim-utils", "infiniband-diags", "opensm")
_SCRIPT = f"""
mkdir -p /out/partial
apt-get update -q
apt-get install -y -q --no-install-recommends --download-only -o Dir::Cache::archives=/out {" ".join(NAMES)}
mkdir /out/tree
for package in /out/*.deb; do
  case $package in */python* | */libpython*) ;; *) dpkg-deb -x "$package" /out/tree ;; esac
done
"""


def ensure() -> Path:
    """A tree with the tools and their libraries, downloaded once. Raises LabError.

    They are not installed: fio would bring a python3, which the hosts of the lab do not have.
    """
    base = BASE.ensure()
    folder = cache() / f"accept-tools-{key(SUITE, base.name, _SCRIPT)[:12]}"
    with tree.once(folder) as stage:
        if stage:
            upper = stage.with_name(f"{stage.name}.upper")
            for each in (stage, upper):
                each.mkdir(parents=True)
            log, binds = tree.log_of(folder), [(stage, "/out")]
            tree.in_tree([base], upper, _SCRIPT, log=log, binds=binds, deadline=tree.DEADLINE_SECONDS)
            shutil.rmtree(upper)
    return folder / "tree"


if __name__ == "__main__":
    print(ensure())
