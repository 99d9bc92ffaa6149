"""Texts of the engine and plugins that busbar recognizes, because they report these events in no other form.

A new release of the engine may change them: tests/engine/test_engine_texts.py provokes each of the engine's.
Those of plugins were read in their source, or seen with the official plugins: Pulumi 3.259.0 and
pulumi-command 1.2.1.
"""

from __future__ import annotations

import re

# Errors that stop the Pulumi engine before it begins.
NO_PASSPHRASE = re.compile(r"passphrase must be set")
WRONG_PASSPHRASE = re.compile(r"incorrect passphrase")
NOT_LOGGED_IN = re.compile(r"PULUMI_ACCESS_TOKEN must be set|not logged in|pulumi login")
NO_STACK = re.compile(r"no stack named")
NO_OUTPUT = re.compile(r"does not have output property")
NO_STATE_FOLDER = re.compile(r"unable to open state directory")
NO_VIRTUALENV = re.compile(r"virtual ?env")
NO_PLUGIN = re.compile(r"no resource plugin|could not find plugin")
LOCKED = re.compile(r"currently locked by|Another update is currently in progress")
LOCK_HOLDER = re.compile(r"created by \S+@(?P<host>\S+) \(pid (?P<pid>\d+)\) at (?P<since>\S+)")
"""One holder of a lock in a file backend."""
TRUNCATED = re.compile(r"unexpected end of JSON input")
"""A file of a file backend is truncated."""
UNREADABLE_STATE = re.compile(r"failed to load checkpoint")

# The engine's warning about steps that an earlier update did not finish.
PENDING = re.compile(r"pending operations from previous deployment")
PENDING_STEP = re.compile(r"^\s*\* (?P<urn>urn:\S+), interrupted while (?P<kind>\w+)", re.MULTILINE)
"""One line per step, below PENDING. The kind is creating, updating, deleting, ..."""

# Errors that only report that another error occurred.
UPDATE_FAILED = re.compile(r"^(update|preview|destroy|refresh) (failed|cancell?ed)$")
PROGRAM_FAILED = re.compile(r"exited with non-zero exit code")
COMPONENT_SKIPPED = re.compile(r"cannot complete a resource .* whose registration isn't pending")
"""A component that was not begun because an earlier step failed."""
PROVIDER_SKIPPED = re.compile(r"unknown provider 'urn:\S+' for resource ")
"""A resource whose provider was not begun because an earlier step failed."""
PLUGIN_NOTE = re.compile(r"^using pulumi-")
"""A plugin on PATH is used."""

# pulumi-command: SSH, and a command that failed. It puts the command, quoted as Go does, between the reason
# and what was printed (provider/pkg/provider/remote/commandOutputs.go).
UNREACHABLE = re.compile(r"dial tcp [^ ]+: (i/o timeout|connect: )|ssh: rejected: connect failed \(")
UNREACHABLE_STEP = re.compile(
    r"^(?P<step>[\w.-]+): .*dial tcp (?P<address>\S+): (?P<why>[^\n]*)", re.DOTALL | re.MULTILINE
)
LOGIN_REFUSED = re.compile(r"ssh: (handshake failed|unable to authenticate)")
COMMAND = re.compile(r': running "(?:[^"\\]|\\.)*":\n?')
CONNECTION_ENDED = re.compile(r"^(?P<step>[\w.-]+): (?P<why>wait: remote command exited without [^\n]*)$")
SCRIPT_FAILED = re.compile(r"exit(?:ed with)? status \d+:\n")

# Error of any plugin in Go.
SECRET_MISSING = re.compile(r"malformed RPC secret: missing value")
"""A step with a secret whose input a failed step did not return; it only follows that error."""
