"""Fixes for the engine's errors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from busbar.cli.ending import ENVIRONMENT
from busbar.finding import STACK, Fix, filled
from busbar.kube.client import ASK_VERIFY

# Texts of the Pulumi engine.
NO_STACK = re.compile(r"no stack named")
NO_OUTPUT = re.compile(r"does not have output property")
LOCK_HOLDER = re.compile(r"created by \S+@(?P<host>\S+) \(pid (?P<pid>\d+)\)")
"""One holder of a lock in a file backend."""
TRUNCATED = re.compile(r"unexpected end of JSON input")
"""A file of a file backend is truncated."""
UNREADABLE_STATE = re.compile(r"failed to load checkpoint")
PENDING = re.compile(r"pending operations from previous deployment")
"""The warning about steps that an earlier update did not finish."""
PENDING_STEP = re.compile(r"^\s*\* (?P<urn>urn:\S+), interrupted while (?P<kind>\w+)", re.MULTILINE)
"""One line per step, below PENDING. The kind is creating, updating, deleting, ..."""
PLUGIN_NOTE = re.compile(r"^using pulumi-")
"""A plugin on PATH is used."""

LOST = Fix("follow the page", ("docs", "sites", "'A lost state file'"))

# pulumi-command: a command that failed. It puts the command, quoted as Go does, between the reason and what
# was printed (provider/pkg/provider/remote/commandOutputs.go).
_UNREACHABLE_STEP = re.compile(
    r"^(?P<step>[\w.-]+): .*dial tcp (?P<address>\S+): (?P<why>[^\n]*)", re.DOTALL | re.MULTILINE
)
_COMMAND = re.compile(r': running "(?:[^"\\]|\\.)*":\n?')
_CONNECTION_ENDED = re.compile(r"^(?P<step>[\w.-]+): (?P<why>wait: remote command exited without [^\n]*)$")
# pulumi-kubernetes advises to drop what it cannot reach from the state, where the cluster may only be down.
_UNREACHABLE_CLUSTER = re.compile(r"(cluster is unreachable|due to unreachable cluster)\b.*", re.DOTALL)
_SCRIPT_FAILED = re.compile(r"exit(?:ed with)? status (?!127:)\d+:\n")

INSTALL_PULUMI = "install the Pulumi CLI (https://www.pulumi.com/docs/install/); `pulumi version` must work"

# Text of the engine or of SSH -> fix. The text itself is always shown first.
_FIXES: Mapping[str, Fix | str] = {
    r"passphrase must be set": "export PULUMI_CONFIG_PASSPHRASE, or PULUMI_CONFIG_PASSPHRASE_FILE=/PATH.",
    r"incorrect passphrase": "export the PULUMI_CONFIG_PASSPHRASE with which this stack was created.",
    r"PULUMI_ACCESS_TOKEN must be set|not logged in|pulumi login": (
        "`pulumi login`, or, to keep the state in a folder, export PULUMI_BACKEND_URL=file:///PATH/OF/A/FOLDER."
    ),
    r"unable to open state directory": "create the folder that PULUMI_BACKEND_URL names, or correct it.",
    r"virtual ?env": ENVIRONMENT,
    # The command of a removal is that of the last update, perhaps on another machine.
    r": exit status 127:\n.*python": Fix(
        "the environment that the state names is not here: list again what was taken out, if anything, and",
        ("up", STACK),
        ", which notes the one here; then retry",
    ),
    # Without the option it also rebuilds the Python environment, with any python3 on PATH.
    r"no resource plugin|could not find plugin": "`pulumi install --no-dependencies` in the project folder.",
    r"dial tcp [^ ]+: (i/o timeout|connect: )|ssh: rejected: connect failed \(": Fix(
        "see which hosts do not answer",
        ("preflight", STACK),
        "; if a machine is gone for good, take it out of hosts",
    ),
    _UNREACHABLE_CLUSTER.pattern: ASK_VERIFY,
    r"ssh: (handshake failed|unable to authenticate)": Fix(
        "see which hosts refuse the key, or have another host key", ("preflight", STACK)
    ),
    r'unknown stack "': "name the stack as `pulumi stack ls --all` does, which lists those of this backend.",
    # Helm's own texts follow; it refuses the object of another release with the first one.
    r"invalid ownership metadata": Fix(
        "to use the installation that has this object, set enabled: false of its chart; else uninstall that "
        "one first, with all that depends on it"
    ),
    r"has no deployed releases": Fix(command=("up", STACK, "--converge", "cluster")),
    r"because it is being terminated": Fix(
        "repair what keeps the namespace (kubectl describe namespace NAMESPACE); when it is gone",
        ("up", STACK, "--converge", "cluster"),
    ),
    r"\.pulumi.*: (operation not permitted|permission denied|read-only file system|no space left on)": (
        "let your user write to the folder of the backend, or free space there: df -h; then retry."
    ),
    r"currently locked by|Another update is currently in progress": (
        "wait until that update has ended; `kill -INT PID` ends its engine after the running steps. If its "
        f"process is gone: `pulumi cancel --stack {STACK}`, then retry."
    ),
}

# Errors that only report that another error occurred.
_FOLLOW_UP = re.compile(
    r"^(update|preview|destroy|refresh) (failed|cancell?ed)$"
    r"|exited with non-zero exit code"
    # A component, or the provider of a resource, was not begun because an earlier step failed.
    r"|cannot complete a resource .* whose registration isn't pending"
    r"|unknown provider 'urn:\S+' for resource "
    # The SDK says this after it has read a stack that does not exist.
    r"|'NoneType' object has no attribute 'get'"
    # A step with a secret whose input a failed step did not return.
    r"|malformed RPC secret: missing value"
)


def reasons(errors: Iterable[str], stderr: str, *, printed: Iterable[str] = ()) -> list[str]:
    """The errors to show: those of the events, else the engine's stderr; each once, in order.

    Errors that only report another error are left out beside it; without one what is `printed` comes first.
    """
    lines = [line.removeprefix("error: ") for line in stderr.strip().splitlines()]
    found = [text.strip() for text in errors] or ["\n".join(lines).strip() or "the engine gave no reason"]
    from busbar.outputs import FOLLOW_UP  # `busbar nccl` does without the packages that this imports

    own = [_named(text) for text in found if FOLLOW_UP not in text and not _FOLLOW_UP.search(text)]
    return list(dict.fromkeys(own or [*(text.strip() for text in printed), *found]))


def _named(text: str) -> str:
    """A connection error as a sentence about its host; any other error without the text of the command."""
    text = _UNREACHABLE_CLUSTER.sub(r"\1", text)
    ran = _COMMAND.search(text)
    if not ran:
        if found := _UNREACHABLE_STEP.search(text):
            why = f"dial tcp {found['address']}: {found['why'].strip()}"
            return f"{found['step']}: is not responding ({why}); no changes made there"
        return text
    text = f"{text[: ran.start()]}:\n{text[ran.end() :]}".rstrip(":\n")
    text = filled(text)  # A script does not know its stack.
    if found := _CONNECTION_ENDED.search(text):
        return f"{found['step']}: the SSH connection ended while its script ran ({found['why']})"
    return text


def fixes(errors: Iterable[str]) -> list[str]:
    """Fixes for the known errors; the output of scripts is ignored, because it has its own fixes."""
    known = "\n".join(_SCRIPT_FAILED.split(text, maxsplit=1)[0] for text in errors)
    return [str(fix) for pattern, fix in _FIXES.items() if re.search(pattern, known)]
