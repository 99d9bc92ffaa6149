"""Exit codes of all commands, and the errors that end a command. docs/operations.md has the table."""

from __future__ import annotations

# 64 and 70 as in sysexits, 130 as shells report SIGINT.
DONE, FAILED, NO_VERDICT, USAGE, SOFTWARE, INTERRUPTED = 0, 1, 2, 64, 70, 130


class Failed(Exception):
    """What was asked about is bad, or what was asked for was not done; the text says why, with the fix."""

    exit_code = FAILED


class NoVerdict(Failed):
    """A cluster, a host or Pulumi does not say what is asked. For a command that acts it is a failure."""

    exit_code = NO_VERDICT


class Misuse(Failed):
    """The usage or the configuration is wrong; nothing was started."""

    exit_code = USAGE
