"""Findings: what is wrong, where, what was got, and what to do."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

KeyPath = tuple[int | str, ...]
"""The path of a value in a configuration: `("hosts", "workers", 1, "address")`; `path_of` makes it a text."""

Kind = Literal["error", "warning", "drift", "unknown", "foreign", "drained", "site"]
"""An error stops the bring-up, a warning does not. `busbar verify` has the others. "drift": an update undoes
it; "unknown": it could not be verified; "foreign": made by others; "drained": made by `busbar drain` or a
health check; "site": only the site can repair it."""

STACK = "STACK"  # Stands for the stack's name in the command of a Fix, where the name is not known.
STACK_SHOWN = "BUSBAR_STACK"  # For a command and the steps that it starts: `prod`, or `prod --project DIR`.


def shown(stack: str) -> str:
    """The words for a stack in a command to be typed where this one was typed: its name, and its folder."""
    known = os.environ.get(STACK_SHOWN, STACK)
    return known if stack in (STACK, known.partition(" ")[0]) else stack


def filled(text: str) -> str:
    """TEXT with the stack of this command in place of STACK, and its folder as busbar and Pulumi take it."""
    name, _, folder = shown(STACK).partition(" --project ")
    text = text.replace(f"--stack {STACK}", f"--stack {name}{f' --cwd {folder}' if folder else ''}")
    return re.sub(rf"(?<![\w.]){STACK}\b", lambda _: shown(STACK), text)


@dataclass(frozen=True)
class Fix:
    """The repair that a message names: a sentence, a command of busbar, or both. Tests parse each command.

    `command`: its words, such as ("up", STACK, "--converge", "worker-1"). `when`: the condition under which
    it helps, or what comes after it. `str()` is what a message shows.
    """

    text: str = ""
    command: tuple[str, ...] = ()
    when: str = ""

    def __str__(self) -> str:
        words = [shown(word) if at == 1 else word for at, word in enumerate(self.command)]
        said = ": ".join(filter(None, (self.text, " ".join(("busbar", *words)) if words else "")))
        between = "" if self.when.startswith((",", ";")) else " "
        return filled(f"{said}{between}{self.when}".rstrip())


def with_fix(what: object, fix: Fix | str) -> str:
    """A message with its fix, if there is one."""
    return f"{str(what).rstrip('.')}. Fix: {text}" if (text := filled(str(fix))) else str(what)


@dataclass(frozen=True)
class Finding:
    """One error, or something that is probably not intended, and the fix.

    `path`: of a value of the configuration, or the name of a host. `found`: the value at the path, in a form
    that a message may show. `origin`: of a host in a list elsewhere (`hosts_from`), its name and where the
    list is. `unreachable`: nothing answers at the host's address. `str()` returns the message.
    """

    path: KeyPath
    what: str
    fix: Fix | str = ""
    found: str = ""
    origin: str = ""
    kind: Kind = "error"
    unreachable: bool = False

    def __str__(self) -> str:
        return self.at(path_of(self.path))

    @property
    def host(self) -> str:
        """The name of the host that the finding is about."""
        return str(self.path[0])

    def below(self, *path: int | str) -> Finding:
        """The same finding with `path` put in front of its own path."""
        return replace(self, path=(*path, *self.path))

    def at(self, place: str) -> str:
        """The sentence, with `place` in place of the path."""
        place += f" ({self.origin})" if self.origin else ""
        return with_fix(f"{place}: {self.found}{' ' if self.found else ''}{self.what}", self.fix)

    def data(self) -> dict[str, Any]:
        """A finding about a host as plain data."""
        return {"host": self.host, "kind": self.kind, "what": self.what, "fix": filled(str(self.fix))}


def error(what: str, fix: Fix | str) -> Finding:
    """An error of the host that is being checked; the caller adds the host."""
    return Finding((), what, fix)


def warning(what: str, fix: Fix | str) -> Finding:
    """A warning about the host that is being checked; the caller adds the host."""
    return Finding((), what, fix, kind="warning")


def of_host(host: str, checks: Iterable[Finding]) -> list[Finding]:
    """Findings of `error` and `warning` with the name of their host."""
    return [each.below(host) for each in checks]


def path_of(loc: Sequence[int | str]) -> str:
    """`("hosts", "workers", 1, "address")` -> `hosts.workers[1].address`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).removeprefix(".")
