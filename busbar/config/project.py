"""The configuration of a capability's project: one object in a stack file, read and validated as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from busbar.config import errors, stackfile
from busbar.config.errors import ConfigError, Finding
from busbar.config.schema import project_schema

Config = TypeVar("Config", bound=BaseModel)


@dataclass(frozen=True, kw_only=True)
class ProjectConfig(Generic[Config]):
    """The configuration `<project>:<key>` of a stack file, which is a `model`.

    `what`: name of what the object describes. `findings`: the checks that no value can make on its own.
    `finding`: returns the finding for an error of pydantic. `secrets`: key -> description, in its namespace.
    """

    project: str
    key: str
    model: type[Config]
    what: str
    findings: Callable[[Config], Iterable[Finding]]
    finding: Callable[[ErrorDetails, type[BaseModel]], Finding] = errors.finding
    secrets: Mapping[str, str] = field(default_factory=dict)

    def read(self, path: Path) -> Config:
        """The validated configuration of a stack file. Raises ConfigError with all findings."""
        file = stackfile.read(path, self.project, self.key, self.secrets, self.what)
        return self.load(file.data)

    def schema(self) -> dict[str, Any]:
        """The JSON Schema of a stack file."""
        title = f"A stack of {self.project}: Pulumi.<stack>.yaml"
        secret = {"type": "object", "required": ["secure"]}
        keys = {name: {**secret, "description": text} for name, text in self.secrets.items()}
        return project_schema(title, self.project, self.key, self.model, more_keys=keys)

    def load(self, data: Any) -> Config:
        """Validate the object as a whole and return it typed.

        Raises ConfigError with all findings: each names the path, the value, and what is expected.
        """
        if not isinstance(data, Mapping):
            raise ConfigError(
                [Finding((f"{self.project}:{self.key}",), "is not an object", f"see {stackfile.EXAMPLE}")]
            )
        try:
            config = self.model.model_validate(data)
        except ValidationError as error:
            raise ConfigError(self.finding(detail, self.model) for detail in error.errors()) from None
        if findings := list(self.findings(config)):
            raise ConfigError(findings)
        return config
