"""Sends a script of `host/` to a host: a short command text, and the script itself on stdin.

The command plugin repeats the whole command text in its error, but never stdin (pulumi/pulumi-command
remote/commandOutputs.go), so the text is one readable line, and stdin carries

    line 1   a flat JSON object whose values are base64: secrets and file contents
    line 2   the script: gzip, base64

A connection that breaks before the end of line 2 runs nothing.

The engine keeps stdin in its state, twice per Command, and writes the whole state after every step. So the
script that runs on every worker does not travel there: preflight, which logs in to the host anyway, has put
it into DELIVERED_DIR, the Command names it by its digest, and stdin is line 1 (docs/scale.md).
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import shlex
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from busbar.capability import FOLDER

HOST_DIR = Path(__file__).resolve().parents[1] / "host"

# The words after parts.sh name the other files of a script, in the order in which they are sent.
_PARTS = re.compile(r'/parts\.sh" ([a-z0-9/ -]+)$', re.MULTILINE)

# Scripts that preflight delivers, by role: those that hundreds of Commands run.
DELIVERED: Mapping[str, str] = {"worker": "k3s-agent"}
# A folder in memory, so nothing in it outlives a reboot. host/lib.sh names it too.
DELIVERED_DIR = "/run/busbar"

# The line on stderr by which host/k3s-agent.sh asks for a drain of its worker, before it fails.
NOT_DRAINED = '{"not_drained": true}'

# The lower-case names are for curl and apt.
_NAME = re.compile(r"[A-Z][A-Z0-9_]*|https?_proxy|no_proxy")
_PAYLOAD_NAME = re.compile(r"[a-z][a-z0-9_]*")
_READ_AND_RUN = 'IFS= read -r PAYLOAD && IFS= read -r SCRIPT && eval "$(base64 -d <<<"$SCRIPT" | gzip -d)"'
# The file is read once, so the verified text is the one that runs.
_RUN_DELIVERED = (
    f'IFS= read -r PAYLOAD && SCRIPT=$(cat {DELIVERED_DIR}/"$BUSBAR_SCRIPT") && '
    '[[ $(sha256sum <<<"$SCRIPT") == "${BUSBAR_SCRIPT##*-}"* ]] || '
    '{ printf "%s\\n" "busbar: $NODE_NAME: this host does not have the script $BUSBAR_SCRIPT" '
    '"{\\"not_delivered\\": \\"$BUSBAR_SCRIPT\\"}" >&2; exit 1; }; eval "$SCRIPT"'
)
_KILL_AFTER_SECONDS = 15


@cache
def text(script: str) -> str:
    """The whole script: its parts, and itself. Raises FileNotFoundError for an unknown script."""
    own = part(script)
    return "\n".join([*map(part, _PARTS.findall(own)[0].split()), own])


def part(name: str) -> str:
    """One file of `host/` without the parts that it loads. Raises FileNotFoundError."""
    capability, slash, script = name.rpartition("/")
    folder = FOLDER / capability / "host" if slash else HOST_DIR
    return (folder / f"{script}.sh").read_text()


@cache
def digest(script: str) -> str:
    """The first 12 hex digits of the script's sha256; they identify a version of the script."""
    return hashlib.sha256(text(script).encode()).hexdigest()[:12]


def identity(script: str) -> str:
    """NAME-DIGEST, which names a version of the script on a host, and the file that it is delivered in."""
    return f"{script}-{digest(script)}"


def delivery(role: str) -> dict[str, str]:
    """The payload by which preflight leaves on a host the script that its role runs later; may be empty."""
    if role not in DELIVERED:
        return {}
    script = DELIVERED[role]
    return {"deliver_as": identity(script), "deliver": text(script)}


def command(
    script: str, values: Mapping[str, str], *, user: str, timeout_seconds: int, delivered: bool = False
) -> str:
    """The text to run on the host; it expects `stdin(script, ...)` on its stdin.

    With `delivered` it runs the script that preflight left on the host, and expects `payload_line(...)`.
    Where that script is missing or another version, it prints `not_delivered` on stderr and fails.
    `values` become environment variables of the script and are visible on the host: nothing secret. For a
    `user` other than root everything runs under `sudo -n`. After `timeout_seconds` the script is
    killed (exit 124). Raises ValueError for a name that is not an upper-case variable name.
    """
    bad = [name for name in values if not _NAME.fullmatch(name)]
    if bad:
        raise ValueError(f"{bad[0]!r} is not a variable name of a host script, expected one like NODE_NAME")
    pairs = {**values, "BUSBAR_SCRIPT": identity(script)}
    words = [
        *(() if user == "root" else ("sudo", "-n")),
        "env",
        *(f"{name}={value}" for name, value in pairs.items()),
        *("timeout", "-k", str(_KILL_AFTER_SECONDS), str(timeout_seconds), "bash", "-c"),
        _RUN_DELIVERED if delivered else _READ_AND_RUN,
    ]
    return shlex.join(words)


def not_delivered(script: str) -> str:
    """The line that a host without the script prints on stderr."""
    return json.dumps({"not_delivered": identity(script)})


def stdin(script: str, payload: Mapping[str, str] | None = None) -> str:
    """The text to send on stdin: the payload, then the script. Raises ValueError as `payload_line`."""
    return f"{payload_line(payload or {})}{packed(text(script))}\n"


def payload_line(payload: Mapping[str, str]) -> str:
    """The payload (secrets, contents of files) as one line of JSON.

    base64 keeps it free of anything that needs unescaping, so that a host needs neither python3 nor jq.
    Raises ValueError for a name that is not a lower-case identifier.
    """
    bad = [name for name in payload if not _PAYLOAD_NAME.fullmatch(name)]
    if bad:
        raise ValueError(f"{bad[0]!r} is not a payload name, expected one such as agent_token")
    encoded = {name: base64.b64encode(value.encode()).decode() for name, value in payload.items()}
    return json.dumps(encoded, separators=(",", ":")) + "\n"


@cache
def packed(text: str) -> str:
    """The text as base64 of gzip, in one line; the same on every call (no time stamp inside)."""
    return base64.b64encode(gzip.compress(text.encode(), compresslevel=9, mtime=0)).decode()


def script_result(stdout: str) -> dict[str, Any]:
    """The object in the last line of `stdout`. Raises ValueError if there is none, without quoting it."""
    last = (stdout.strip().splitlines() or [""])[-1]
    try:
        found = json.loads(last[max(last.find('{"'), 0) :])
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ValueError("a script on a host exited 0 without a facts line")
    return found


def with_server(kubeconfig: str, *, server: str, name: str, proxy_url: str | None = None) -> str:
    """K3s's kubeconfig, which points at 127.0.0.1, for `server` (an https URL), with `name` for its entries.

    `proxy_url` is the HTTP proxy to it, if any. Raises ValueError for another text than a kubeconfig of K3s.
    """
    try:
        content = yaml.safe_load(kubeconfig)
        cluster, user = content["clusters"][0]["cluster"], content["users"][0]["user"]
    except (yaml.YAMLError, TypeError, LookupError):
        # The parser's own message quotes the text, which has a key.
        raise ValueError("not a kubeconfig of K3s") from None
    proxy = {"proxy-url": proxy_url} if proxy_url else {}
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": {**cluster, "server": server, **proxy}}],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
            "current-context": name,
        },
        sort_keys=False,
    )
