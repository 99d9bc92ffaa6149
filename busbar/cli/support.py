"""`busbar support-bundle`: makes the file to send when a bring-up fails."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from busbar.cli.operation import operations_of
from busbar.cli.stackfile import Project, SecretError, Stack, find_file, read_secret

PACKAGES = (
    "pulumi",
    "pulumi-command",
    "pulumi-kubernetes",
    "pulumi-random",
    "urllib3",
    "asyncssh",
)
COMMAND_SECONDS = 60


def support_bundle(
    stack: Stack,
    project: Project = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File to write; default: ./busbar-support-STACK-TIME.tar.gz."),
    ] = None,
    preflight: Annotated[
        bool, typer.Option(help="Run preflight; without it the bundle has no facts of the hosts.")
    ] = True,
) -> None:
    """Write versions, findings, facts, logs and verdicts of a stack into a tar.gz, without secrets.

    It also works on a stack that is invalid or was never brought up.

    Exit code 0: written; 1: the file cannot be written; 64: no such stack.
    """
    from datetime import UTC, datetime

    from busbar.cli.output import fail
    from busbar.config.stackfile import stack_of
    from busbar.support.bundle import Bundle
    from busbar.support.redact import Redactor

    path = find_file(stack, project)
    text = path.read_text(encoding="utf-8", errors="replace")
    name, project = stack_of(path), path.parent
    state = project / ".busbar" / name
    target = output or Path(f"busbar-support-{name}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.tar.gz")
    redactor = Redactor(_known_secrets(text, name, project, state))
    try:
        with Bundle(target, redactor) as bundle:
            bundle.add_json("versions.json", _versions(project))
            bundle.add_json("preflight.json", _preflight(path) if preflight else {"skipped": True})
            bundle.add_json("engine.json", _engine(name, project))
            bundle.add_files(state)
    except OSError as error:
        fail(f"{target} cannot be written: {error.strerror or error}", 1)
    typer.echo(
        f"{target}: secrets were replaced; host names and addresses were not. Review it before you send it"
    )


def _known_secrets(text: str, stack: str, project: Path, state: Path) -> list[str]:
    """Values that must not be in the bundle, as far as they can be read here."""
    import yaml

    from busbar.config.schema import SECRETS
    from busbar.support.redact import kubeconfig_secrets

    found: list[str] = []
    try:
        config = yaml.safe_load(text)["config"]
        entries = {str(key): value for key, value in config.items()}
    except (yaml.YAMLError, KeyError, TypeError, AttributeError):
        entries = {}
    ssh: Any = None
    for key, value in entries.items():
        namespace, _, name = key.partition(":")
        if key == "busbar:cluster" or namespace == f"busbar-{name}":  # the configuration
            ssh = value.get("ssh") if isinstance(value, dict) else None
        elif name in SECRETS and value and not isinstance(value, dict):
            found += _leaves(str(value))
        elif name in SECRETS and value:
            try:
                found += _leaves(read_secret(stack, project, name, namespace=namespace))
            except SecretError:
                continue  # without the passphrase nothing here shows it in plain text
    key_file = ssh.get("key_file") if isinstance(ssh, dict) else None
    for file in filter(None, [key_file and project / Path(str(key_file)).expanduser(), state / "kubeconfig"]):
        try:
            content = file.read_text()
        except (OSError, UnicodeDecodeError):
            continue
        found += kubeconfig_secrets(content) if file.name == "kubeconfig" else [content]
    return found


def _leaves(text: str) -> list[str]:
    """A secret and, if it is JSON (registryCredentials), the texts in it."""
    import json

    def walk(value: Any) -> list[str]:
        if isinstance(value, dict):
            return [leaf for item in value.values() for leaf in walk(item)]
        return [value] if isinstance(value, str) else []

    try:
        return [text, *walk(json.loads(text))]
    except ValueError:
        return [text]


def _versions(project: Path) -> dict[str, Any]:
    import platform
    from importlib import metadata

    from busbar import release

    def version(package: str) -> str | None:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            return None

    return {
        "busbar": release.line(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "packages": {package: version(package) for package in PACKAGES},
        "pulumi": _run("pulumi", "version"),
        "project_commit": _run("git", "-C", str(project), "rev-parse", "HEAD"),
    }


def _preflight(path: Path) -> dict[str, Any]:
    """Findings and facts of all hosts, or the reason why there are none."""
    from dataclasses import asdict

    from busbar.config import ConfigError
    from busbar.exits import Misuse

    try:
        _, outcome = operations_of(path).preflight(path)
    except ConfigError as error:
        return {"error": "the configuration is invalid", "findings": [*map(str, error.findings)]}
    except (ValueError, SecretError, Misuse) as error:
        return {"error": str(error)}
    return {
        "findings": [asdict(finding) for finding in outcome.findings],
        "facts": {name: dict(record.facts) for name, record in outcome.records.items()},
    }


def _engine(stack: str, project: Path) -> dict[str, Any]:
    import json

    from busbar.support.bundle import engine_state

    text = _run("pulumi", "stack", "export", "--stack", stack, "--cwd", str(project), "--non-interactive")
    try:
        return engine_state(json.loads(text))
    except ValueError:
        return {"error": text}


def _run(*words: str) -> str:
    """The stdout of a command, or the reason why there is none."""
    import subprocess

    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False)
    except FileNotFoundError:
        return f"{words[0]} is not on PATH"
    except subprocess.TimeoutExpired:
        return f"timed out after {COMMAND_SECONDS} s"
    return done.stdout.strip() if done.returncode == 0 else f"failed: {done.stderr.strip()}"
