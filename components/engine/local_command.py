"""`busbar` commands that the engine runs on the machine that runs Pulumi."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pulumi
from pulumi_command import local

from busbar.kube.client import KUBECONFIG_TEXT
from busbar.manifests.names import digest


def create_cluster_command(
    name: str,
    command: str,
    spec: Mapping[str, Any] | pulumi.Output[Mapping[str, Any]],
    kubeconfig: pulumi.Input[str],
    opts: pulumi.ResourceOptions,
    triggers: Sequence[pulumi.Input[Any]] = (),
    *,
    with_previous_result: bool = False,
    at_removal: bool = False,
) -> local.Command:
    """Register `busbar COMMAND` on the cluster, with the JSON of `spec` on stdin and its result on stdout.

    It runs again when `triggers` or `spec` change. `with_previous_result`: the environment of the command has
    its previous output, unless `triggers` have changed. `at_removal`: it runs at its deletion only, which a
    change of `triggers` would be. The kubeconfig is a secret variable of the process, and not on disk.
    """
    stdin = spec.apply(_json) if isinstance(spec, pulumi.Output) else _json(spec)
    environment = {KUBECONFIG_TEXT: pulumi.Output.secret(kubeconfig)}
    more: dict[str, Any] = {"environment": environment, "triggers": list(triggers), "at_removal": at_removal}
    return create_hosts_command(name, command, stdin, opts, with_previous_result=with_previous_result, **more)


def _json(spec: Mapping[str, Any]) -> str:
    return json.dumps(spec, sort_keys=True)


def create_hosts_command(
    name: str,
    command: str,
    stdin: pulumi.Input[str],
    opts: pulumi.ResourceOptions,
    *,
    with_previous_result: bool = False,
    at_removal: bool = False,
    **more: Any,
) -> local.Command:
    """Register `busbar COMMAND` on hosts; `stdin` has the login.

    `with_previous_result`: the environment of the command has its previous output. `at_removal`: it runs at
    its deletion only. `more`: arguments of the Command.
    """
    more["delete" if at_removal else "create"] = busbar_command(*command.split())
    return local.Command(
        name,
        stdin=stdin,
        # stdout is the result and becomes an output; the progress is on stderr.
        logging=local.Logging.STDERR,
        add_previous_output_in_env=with_previous_result,
        opts=opts,
        **more,
    )


def digest_in_first_folder(
    name: str, spec: Mapping[str, Any], parent: pulumi.Resource | None
) -> pulumi.Output[str]:
    """The digest of a request with its first `folder`, for `triggers`: a renamed stack replaces nothing."""
    opts = pulumi.ResourceOptions(parent=parent)
    first: pulumi.Output[str] = pulumi.Stash(name, input=spec["folder"], opts=opts).output
    return first.apply(lambda folder: digest({**spec, "folder": folder}))


def busbar_command(*words: str) -> str:
    """`<python> -m busbar <words>`, quoted, by the program's own interpreter: plugins lack its PATH."""
    return shlex.join([from_project(sys.executable), "-m", "busbar", *words])


def from_project(path: str) -> str:
    """The path as stored in the state: relative (`./...`) inside the project folder: its copies agree."""
    relative = os.path.relpath(path)
    return path if relative.startswith(os.pardir) else os.path.join(os.curdir, relative)
