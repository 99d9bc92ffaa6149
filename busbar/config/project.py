"""Reads and validates the configuration of a project: one object in a stack file, as a whole."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from busbar.config import checks, files, findings, stackfile
from busbar.config.cluster import Cluster
from busbar.config.findings import ConfigError
from busbar.config.stackfile import KEY, PROJECT, SECRETS, StackFile, project_schema
from busbar.finding import Finding

Config = TypeVar("Config", bound=BaseModel)
Beside = Callable[[Config, Collection[str], Path | None], Iterable[Finding]]


@dataclass(frozen=True, kw_only=True)
class ProjectConfig(Generic[Config]):
    """The configuration `<project>:<key>` of a stack file, which is a `model`.

    `what`: name of what the object describes. `secrets`: key -> description, in the project's namespace.
    `refused`: finds what may not be in the object at all. `finding`: returns the finding for an error of
    pydantic. `checks`: those that no value can make on its own. `checks_beside`: those that also need the
    names of the secrets that are set, and the project folder where it is known.
    """

    project: str
    key: str
    model: type[Config]
    what: str
    checks: Callable[[Config], Iterable[Finding]]
    checks_beside: Beside[Config] = lambda *_: ()
    refused: Callable[[Mapping[str, Any]], Iterable[Finding]] = lambda _: ()
    finding: Callable[[ErrorDetails, type[BaseModel]], Finding] = findings.finding
    secrets: Mapping[str, str] = field(default_factory=dict)

    def file(self, path: Path) -> StackFile:
        """A stack file as written. Raises ConfigError."""
        return stackfile.read(path, self.project, self.key, self.secrets, self.what)

    def read(self, path: Path) -> Config:
        """The validated configuration of a stack file. Raises ConfigError with all findings."""
        return self.load(self.file(path).data)

    def schema(self) -> dict[str, Any]:
        """The JSON Schema of a stack file."""
        return project_schema(self.project, self.key, self.model, self.secrets)

    def load(self, data: Any, *, secret_keys: Collection[str] = (), root: Path | None = None) -> Config:
        """Validate the object as a whole and return it typed.

        `secret_keys`: which of `secrets` are set; their values are not needed. `root`: the project folder; if
        given, the files that the configuration names are checked too.

        Raises ConfigError with all findings on single values, or else all on several together.
        """
        if not isinstance(data, Mapping):
            raise ConfigError(
                [Finding((f"{self.project}:{self.key}",), "is not an object", f"see {stackfile.EXAMPLE}")]
            )
        config: Config | None = None
        found = [*self.refused(data)]
        known = {each.path for each in found}
        try:
            config = self.model.model_validate(data)
        except ValidationError as error:
            of_values = (self.finding(detail, self.model) for detail in error.errors())
            found += (each for each in of_values if each.path not in known)
        if config is not None and not found:
            found = [*self.checks(config), *self.checks_beside(config, secret_keys, root)]
        if config is None or found:
            raise ConfigError(found)
        return config


def _beside(cluster: Cluster, secret_keys: Collection[str], root: Path | None) -> Iterator[Finding]:
    yield from checks.login(cluster.ssh, secret_keys, PROJECT)
    yield from checks.bucket(cluster, secret_keys)
    if root is not None:
        yield from files.unusable(cluster, root)
    yield from files.without_checksum(cluster.k3s, root)


load = ProjectConfig(
    project=PROJECT,
    key=KEY,
    model=Cluster,
    what="the cluster",
    checks=checks.of_cluster,
    checks_beside=_beside,
    refused=stackfile.secrets_in,
    secrets=SECRETS,
).load
