"""Picking up a release that an interrupted run left behind.

The official plugin does not: it refuses a name that is in use and an operation "in progress", and asks for
`helm rollback` or `helm uninstall` by hand. BUSBAR_LAB_STRICT_HELM=1 makes the stand-in refuse as well.
"""

from __future__ import annotations

import os

from lab.plugins.helm_cli import Helm, HelmFailed
from lab.plugins.resource import Call

_INTERRUPTED = ("pending-install", "pending-upgrade", "pending-rollback", "uninstalling")


def status(helm: Helm, name: str) -> str | None:
    """The status of the release's newest revision, None where there is no such release."""
    try:
        return str(helm.json("status", name)["info"]["status"])
    except HelmFailed as error:
        if "not found" in str(error):
            return None
        raise


def clear_the_way(helm: Helm, call: Call, name: str) -> bool:
    """Undo an interrupted operation on the release. True where a usable release is left to upgrade.

    Raises HelmFailed where helm cannot undo it.
    """
    if os.environ.get("BUSBAR_LAB_STRICT_HELM") == "1":
        return False
    found = status(helm, name)
    if found is None:
        return False
    call.say(
        "warning", f"Helm release {name} is {found} from an earlier run: the official plugin would stop here"
    )
    if found not in _INTERRUPTED:
        return found != "uninstalled"
    revisions = helm.json("history", name)
    good = [item["revision"] for item in revisions if item["status"] in ("deployed", "superseded")]
    if good:
        helm.run("rollback", name, str(max(good)))
        return True
    helm.run("uninstall", name, "--no-hooks", "--wait")
    return False
