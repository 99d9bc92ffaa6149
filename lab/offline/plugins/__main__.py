"""Start one plugin: `python __main__.py command|random|terraform-provider [ENGINE_ADDRESS]`.

The working directory and the environment are those of the program that the engine runs (local commands
inherit both), so neither is used to find this package.
"""

from __future__ import annotations

import importlib
import os
import sys

# Python puts a script's own folder first on the path, where our modules would be found without their package.
sys.path[0] = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))


# Imported by name, so that a plugin loads only its own kinds.
_PROVIDERS = {
    "command": ("lab.offline.plugins.command.provider", "CommandProvider"),
    "random": ("lab.offline.plugins.random.provider", "RandomProvider"),
    "terraform-provider": ("lab.offline.plugins.terraform.provider", "TerraformProvider"),
}


def main(arguments: list[str]) -> None:
    """Serve the plugin named by the first of `arguments`; exits 64 on bad usage."""
    name = arguments[0] if arguments else ""
    # The engine may add flags; the only other argument is its address.
    addresses = [argument for argument in arguments[1:] if not argument.startswith("-")]

    from lab.offline.plugins.sdk.fast_import import skip_sdk_import

    skip_sdk_import()
    if name not in _PROVIDERS:
        print(f"unknown plugin {name!r}: expected {', '.join(_PROVIDERS)}", file=sys.stderr)
        raise SystemExit(64)
    module, provider = _PROVIDERS[name]
    chosen = getattr(importlib.import_module(module), provider)()
    importlib.import_module("lab.offline.plugins.sdk.serve").run(chosen, addresses[0] if addresses else None)


if __name__ == "__main__":
    main(sys.argv[1:])
