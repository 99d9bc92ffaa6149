"""Exit codes of all commands, and the errors that end a command. docs/operations.md has the table."""

from __future__ import annotations

from busbar.finding import Fix, with_fix

# 64 and 70 as in sysexits, 130 as shells report SIGINT.
DONE, FAILED, NO_VERDICT, USAGE, SOFTWARE, INTERRUPTED = 0, 1, 2, 64, 70, 130


class Failed(Exception):
    """A command did not do its work; the text has the reason and the fix, `what` only the reason."""

    exit_code = FAILED

    def __init__(self, what: object = "", fix: Fix | str = "") -> None:
        self.what, self.fix = str(what), fix
        super().__init__(with_fix(what, fix))


class NoVerdict(Failed):
    """A cluster, a host or Pulumi gives no answer. For a command that changes something it is a failure."""

    exit_code = NO_VERDICT


class Misuse(Failed):
    """The usage or the configuration is wrong; nothing was started."""

    exit_code = USAGE
