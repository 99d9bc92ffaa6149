"""local.Command: run a command on the machine where the engine runs."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

from lab.offline.plugins.command.base import CommandResource, failure_text, logs, previous_environment
from lab.offline.plugins.command.output import Output
from lab.offline.plugins.sdk.resource import Call, ProviderError, unique
from lab.offline.plugins.sdk.values import Properties

_CANCEL_CHECK_SECONDS = 0.2


class LocalCommand(CommandResource):
    """Runs `interpreter + [text]` in `dir` with the engine's environment plus `environment`."""

    fields = frozenset(
        {
            *(
                "triggers",
                "create",
                "update",
                "delete",
                "stdin",
                "logging",
                "interpreter",
                "dir",
                "environment",
            ),
            *("assetPaths", "archivePaths", "addPreviousOutputInEnv"),
        }
    )

    def create(self, call: Call, inputs: Properties) -> tuple[str, Properties]:
        return unique(call.name), self.new_state(call, inputs)

    def run(self, call: Call, text: str, inputs: Properties, previous: Mapping[str, str]) -> Properties:
        return run_local(text, inputs, previous=previous, show=call.show, cancelled=call.cancelled)


def run_local(
    text: str,
    inputs: Mapping[str, Any],
    *,
    previous: Mapping[str, str],
    show: Callable[[str], None],
    cancelled: threading.Event,
) -> Properties:
    """Run `text`; returns stdout and stderr. Raises ProviderError where it cannot start or fails."""
    for unsupported in ("assetPaths", "archivePaths"):
        if inputs.get(unsupported):
            raise ProviderError(f"{unsupported} is not supported by this replacement of the command plugin")
    output = Output(show, frozenset(name for name in ("stdout", "stderr") if logs(inputs, name)))
    argv = [*(inputs.get("interpreter") or ["/bin/sh", "-c"]), text]
    environment = {
        **os.environ,
        **(inputs.get("environment") or {}),
        **previous_environment(inputs, previous),
    }
    try:
        process = subprocess.Popen(
            argv,
            cwd=inputs.get("dir"),
            env=environment,
            stdin=subprocess.PIPE if inputs.get("stdin") else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # so that a cancelled command goes with all of its children
        )
    except OSError as error:
        raise ProviderError(failure_text(str(error), text, "")) from error
    threads = [
        threading.Thread(target=_pump, args=(pipe, name, output), daemon=True)
        for pipe, name in ((process.stdout, "stdout"), (process.stderr, "stderr"))
    ]
    if inputs.get("stdin"):
        threads.append(threading.Thread(target=_feed, args=(process.stdin, inputs["stdin"]), daemon=True))
    for thread in threads:
        thread.start()
    _wait(process, cancelled)
    for thread in threads:
        thread.join()
    if process.returncode:
        raise ProviderError(failure_text(_reason(process.returncode), text, output.both))
    output.finish()
    return output.outputs()


def _pump(pipe: BinaryIO, name: str, output: Output) -> None:
    with pipe:
        while data := os.read(pipe.fileno(), 65536):
            output.write(name, data)


def _feed(pipe: BinaryIO, text: str) -> None:
    try:
        with pipe:
            pipe.write(text.encode())
    except BrokenPipeError:
        return  # the command need not read all of its input


def _wait(process: subprocess.Popen[bytes], cancelled: threading.Event) -> None:
    while True:
        try:
            process.wait(timeout=_CANCEL_CHECK_SECONDS)
            return
        except subprocess.TimeoutExpired:
            if cancelled.is_set():
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return


def _reason(code: int) -> str:
    if code > 0:
        return f"exit status {code}"
    return f"signal: {signal.strsignal(-code) or -code}".lower()
