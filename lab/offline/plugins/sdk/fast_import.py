"""Load Pulumi's gRPC messages without loading the whole SDK.

`import pulumi` costs about half a second of CPU, and every `pulumi up` starts two plugins. The messages
themselves need nothing of the SDK, so the executable registers empty parent packages first. Only the
executable calls this: in a process that also uses the SDK (tests), the plain import has the same effect.
"""

from __future__ import annotations

import importlib.util
import sys
import types


def skip_sdk_import() -> None:
    """Make `pulumi.runtime.proto.*` importable without running `pulumi/__init__.py`.

    Raises ModuleNotFoundError where the SDK is not installed.
    """
    if "pulumi" in sys.modules:
        return
    spec = importlib.util.find_spec("pulumi")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(
            "the Pulumi SDK is missing from this Python: install the project's requirements"
        )
    root = spec.submodule_search_locations[0]
    for name in ("pulumi", "pulumi.runtime", "pulumi.runtime.proto"):
        package = types.ModuleType(name)
        package.__path__ = [root + name.removeprefix("pulumi").replace(".", "/")]
        sys.modules[name] = package
