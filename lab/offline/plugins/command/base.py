"""What local and remote commands share: when they run, and what their outputs are.

Followed from pulumi-command 1.2.1 (provider/pkg/provider/{local,remote}/commandController.go) and the default
diff and preview rules of pulumi-go-provider 1.5.0 (infer/resource.go).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from lab.offline.plugins.sdk import structural
from lab.offline.plugins.sdk.resource import Call, Difference, Resource
from lab.offline.plugins.sdk.values import UNKNOWN, Properties, has_unknown, reveal

OUTPUTS: Final = ("stdout", "stderr")


def differ(call: Call, state: Properties, news: Properties, fields: frozenset[str]) -> Difference:
    """Every changed input is an update; a changed trigger is a replacement."""
    olds = call.old_inputs
    if olds is None:
        olds = {key: value for key, value in state.items() if key in fields}
    news = {key: value for key, value in news.items() if key != "version" and not key.startswith("__")}
    for key in call.ignore_changes:
        if key in state:
            news[key] = state[key]
    found = structural.changes(olds, news)
    return Difference(
        {
            path: f"{kind}_REPLACE" if path == "triggers" or path.startswith("triggers[") else kind
            for path, kind in found.items()
        }
    )


class CommandResource(Resource):
    """A command with `create`, `update` and `delete` texts; a subclass runs them."""

    fields: frozenset[str]

    def run(self, call: Call, text: str, inputs: Properties, previous: Mapping[str, str]) -> Properties:
        """Run `text`; returns the outputs. Raises ProviderError where it could not run or failed."""
        raise NotImplementedError

    def diff(self, call: Call, id: str, state: Properties, news: Properties) -> Difference:
        return differ(call, state, news, self.fields)

    def new_state(self, call: Call, inputs: Properties) -> Properties:
        """The state right after creation."""
        if call.preview:
            return {**inputs, **dict.fromkeys(OUTPUTS, UNKNOWN)}
        text = reveal(inputs.get("create"))
        ran = self.run(call, text, reveal(inputs), {}) if text is not None else dict.fromkeys(OUTPUTS, "")
        return {**inputs, **ran}

    def update(self, call: Call, id: str, state: Properties, news: Properties) -> Properties:
        previous = {key: state.get(key, "") for key in OUTPUTS}
        if call.preview:
            rerun = any(
                has_unknown(news.get(key)) or (key in state and reveal(news.get(key)) != reveal(state[key]))
                for key in self.fields
            )
            return {**news, **(dict.fromkeys(OUTPUTS, UNKNOWN) if rerun else previous)}
        plain = reveal(news)
        text = plain.get("update", plain.get("create"))
        ran = self.run(call, text, plain, reveal(previous)) if text is not None else previous
        return {**news, **ran}

    def delete(self, call: Call, id: str, state: Properties) -> None:
        stored = reveal(state)
        if stored.get("delete") is not None:
            self.run(call, stored["delete"], stored, {key: stored.get(key, "") for key in OUTPUTS})


def failure_text(reason: str, command: str, output: str) -> str:
    """How a failed command is reported: the whole text and both streams, never stdin."""
    return f"{reason}: running {json.dumps(command, ensure_ascii=False)}:\n{output}"


def logs(inputs: Mapping[str, Any], stream: str) -> bool:
    """Whether lines of `stream` (stdout or stderr) are shown while the command runs."""
    return inputs.get("logging", "stdoutAndStderr") in (stream, "stdoutAndStderr")


def previous_environment(inputs: Mapping[str, Any], previous: Mapping[str, str]) -> dict[str, str]:
    """The former output as variables, unless `addPreviousOutputInEnv` is false."""
    if inputs.get("addPreviousOutputInEnv") is False:
        return {}
    return {f"PULUMI_COMMAND_{key.upper()}": text for key, text in previous.items() if text}
