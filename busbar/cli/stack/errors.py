"""Fixes for the engine's errors."""

from __future__ import annotations

from collections.abc import Iterable

from busbar.cli.stack import engine_texts as texts

NO_PULUMI_CLI = (
    "the command `pulumi` is not on PATH. "
    "Fix: install the Pulumi CLI (https://www.pulumi.com/docs/install/) and open a new shell."
)

# Text of the engine -> fix. The text itself is always shown first.
_FIXES = (
    (
        texts.NO_PASSPHRASE,
        "export PULUMI_CONFIG_PASSPHRASE, or PULUMI_CONFIG_PASSPHRASE_FILE=/PATH/OF/A/FILE that holds it.",
    ),
    (texts.WRONG_PASSPHRASE, "export the PULUMI_CONFIG_PASSPHRASE with which this stack was created."),
    (
        texts.NOT_LOGGED_IN,
        "`pulumi login`, or, to keep the state in a folder, export PULUMI_BACKEND_URL=file:///PATH/OF/A/FOLDER.",
    ),
    (
        texts.NO_STATE_FOLDER,
        "create the folder that PULUMI_BACKEND_URL names, or correct the variable.",
    ),
    (
        texts.NO_VIRTUALENV,
        "`make venv` in the checkout creates the Python environment that Pulumi.yaml names.",
    ),
    # Without the option it also rebuilds the Python environment, with any python3 on PATH.
    (texts.NO_PLUGIN, "`pulumi install --no-dependencies` in the project folder installs the plugins."),
    (
        texts.UNREACHABLE,
        "`busbar preflight STACK` names the hosts that do not answer. If a machine is gone for good, "
        "take it out of hosts.",
    ),
    (
        texts.LOGIN_REFUSED,
        "`busbar preflight STACK` names the hosts that refuse the key, or that have another host key.",
    ),
    (
        texts.LOCKED,
        "wait until that update has ended. If its process is gone: `pulumi cancel STACK`, then retry.",
    ),
)

# Errors that only report that another error occurred.
_FOLLOW_UPS = (
    texts.UPDATE_FAILED,
    texts.PROGRAM_FAILED,
    texts.COMPONENT_SKIPPED,
    texts.PROVIDER_SKIPPED,
    texts.SECRET_MISSING,
)


def reasons(errors: Iterable[str], stderr: str, *, printed: Iterable[str] = ()) -> list[str]:
    """The errors to show: those of the events, else the engine's stderr; each once, in order.

    Errors that only report another error are left out if there is one; otherwise the text that the program
    `printed` comes first.
    """
    lines = [line.removeprefix("error: ") for line in stderr.strip().splitlines()]
    found = [text.strip() for text in errors] or ["\n".join(lines).strip() or "the engine gave no reason"]
    from busbar.outputs import FOLLOW_UP  # `busbar nccl` does without the packages that this imports

    own = [
        _named(text)
        for text in found
        if FOLLOW_UP not in text and not any(known.search(text) for known in _FOLLOW_UPS)
    ]
    return list(dict.fromkeys(own or [*(text.strip() for text in printed), *found]))


def _named(text: str) -> str:
    """A connection error as a sentence about its host; any other error without the text of the command."""
    ran = texts.COMMAND.search(text)
    if not ran:
        if found := texts.UNREACHABLE_STEP.search(text):
            why = f"dial tcp {found['address']}: {found['why'].strip()}"
            return f"{found['step']}: is not responding ({why}); no changes made there"
        return text
    text = f"{text[: ran.start()]}:\n{text[ran.end() :]}".rstrip(":\n")
    if found := texts.CONNECTION_ENDED.search(text):
        return f"{found['step']}: the SSH connection ended while its script ran ({found['why']})"
    return text


def fixes(errors: Iterable[str]) -> list[str]:
    """Fixes for the known errors; the output of scripts is ignored, because it has its own fixes."""
    known = "\n".join(texts.SCRIPT_FAILED.split(text, maxsplit=1)[0] for text in errors)
    return [fix for pattern, fix in _FIXES if pattern.search(known)]
