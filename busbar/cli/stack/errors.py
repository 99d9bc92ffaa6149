"""Exit codes, and what to do about the engine's errors."""

from __future__ import annotations

import re
from collections.abc import Iterable

DONE = 0
FAILED = 1
USAGE = 64  # EX_USAGE of sysexits, as in all commands
INTERRUPTED = 130  # 128 + SIGINT, as shells report it

NO_PULUMI_CLI = (
    "the command `pulumi` is not on PATH. "
    "Fix: install the Pulumi CLI (https://www.pulumi.com/docs/install/) and open a new shell."
)

# What the engine says -> what to do. The engine's own text is always shown first.
_FIXES = (
    (
        r"passphrase must be set",
        "export PULUMI_CONFIG_PASSPHRASE, or PULUMI_CONFIG_PASSPHRASE_FILE=/PATH/OF/A/FILE that holds it.",
    ),
    (r"incorrect passphrase", "export the PULUMI_CONFIG_PASSPHRASE with which this stack was created."),
    (
        r"PULUMI_ACCESS_TOKEN must be set|not logged in|pulumi login",
        "`pulumi login`, or, to keep the state in a folder, export PULUMI_BACKEND_URL=file:///PATH/OF/A/FOLDER.",
    ),
    (
        r"unable to open state directory",
        "create the folder that PULUMI_BACKEND_URL names, or correct the variable.",
    ),
    (
        r"virtual ?env",
        "`make venv` in the checkout creates the Python environment that Pulumi.yaml names.",
    ),
    (
        r"no resource plugin|could not find plugin",
        "`pulumi install` in the project folder installs the plugins.",
    ),
    (
        r"dial tcp [^ ]+: (i/o timeout|connect: (no route to|connection refused|network is unreachable))"
        r"|ssh: rejected: connect failed \(|does not answer \(",
        "`busbar preflight STACK` names the hosts that do not answer. If a machine is gone for good, "
        "take it out of hosts.",
    ),
    (
        r"ssh: (handshake failed|unable to authenticate)",
        "`busbar preflight STACK` names the hosts that refuse the key, or that have another host key.",
    ),
    (
        r"currently locked by|Another update is currently in progress",
        "wait until that update has ended. If its process is gone: `pulumi cancel`, then retry.",
    ),
)

_UNREACHABLE = re.compile(
    r"^(?P<step>[\w.-]+): .*dial tcp (?P<address>\S+): (?P<why>[^\n]*)", re.DOTALL | re.MULTILINE
)

# The command, quoted as Go does, that pulumi-command puts between the reason and what was printed
# (v1.2.1, provider/pkg/provider/remote/commandOutputs.go). Ours set variables and start a script.
_COMMAND = re.compile(r': running "(?:[^"\\]|\\.)*":\n?')
_CONNECTION_ENDED = re.compile(r"^(?P<step>[\w.-]+): (?P<why>wait: remote command exited without [^\n]*)$")

_SCRIPT_FAILED = re.compile(r"exit(?:ed with)? status \d+:\n")

# Errors that only say that there was another error.
_FOLLOW_UP = re.compile(
    r"^(update|preview|destroy|refresh) (failed|cancell?ed)$|exited with non-zero exit code"
    r"|(^|: )(the outputs stay as they were|no host is uninstalled): "
    # A component that was skipped because a step before it failed.
    r"|cannot complete a resource .* whose registration isn't pending"
    # A step with a secret in it that needs what a failed step did not return.
    r"|malformed RPC secret: missing value"
)


class StackError(Exception):
    """A command cannot go on: what, got, and how to fix it, with the exit code."""

    def __init__(self, message: str, *, exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def missing_package(module: str) -> str:
    """The message where the package imported as MODULE, one of the extra `stack`, is not installed."""
    return (
        f"this command needs the Python package {module.replace('_', '-')}, which is not installed. "
        "Fix: in the checkout `make venv`, or `pip install '.[stack]'`."
    )


def reasons(errors: Iterable[str], stderr: str, *, printed: Iterable[str] = ()) -> list[str]:
    """The errors worth reading: those of the events, else the engine's stderr; each once, in order.

    An error that only reports another one is left out where there is another one; without another one,
    what the program `printed` comes first.
    """
    lines = [line.removeprefix("error: ") for line in stderr.strip().splitlines()]
    texts = [text.strip() for text in errors] or ["\n".join(lines).strip() or "the engine gave no reason"]
    own = [_named(text) for text in texts if not _FOLLOW_UP.search(text)]
    return list(dict.fromkeys(own or [*(text.strip() for text in printed), *texts]))


def _named(text: str) -> str:
    """A raw error of a connection as a sentence about its host; any other one without the command."""
    ran = _COMMAND.search(text)
    if not ran:
        if found := _UNREACHABLE.search(text):
            why = found["why"].strip()
            return f"{found['step']}: {found['address']} does not answer ({why}); no changes made there"
        return text
    text = f"{text[: ran.start()]}:\n{text[ran.end() :]}".rstrip(":\n")
    if found := _CONNECTION_ENDED.search(text):
        return f"{found['step']}: the SSH connection ended while its script ran ({found['why']})"
    return text


def fixes(errors: Iterable[str]) -> list[str]:
    """What to do about the known errors, without what a script printed: it says itself what to do."""
    known = "\n".join(_SCRIPT_FAILED.split(text, maxsplit=1)[0] for text in errors)
    return [fix for pattern, fix in _FIXES if re.search(pattern, known)]
