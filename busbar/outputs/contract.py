"""Reading the outputs of a busbar stack from another program, typed and checked."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, Protocol

from pydantic import Field, StrictBool, StrictFloat, ValidationError

from busbar.exits import NoVerdict
from busbar.models import OutputModel, number, problems
from busbar.outputs.details import Details, unpack

CONTRACT_VERSION = 3
"""Raised when an output changes its meaning or is removed; a new output alone does not raise it."""


MEASURED_ONLY = "this stack only measured its cluster, and has no hosts, endpoint and kubeconfig"


class ContractError(NoVerdict, ValueError):
    """The outputs are not those of a busbar stack, or have another contract version."""


class StackReference(Protocol):
    """The part of `pulumi.StackReference` that is used; busbar itself never imports pulumi."""

    def get_output_details(self, name: str) -> Awaitable[Any]:
        """The output as `value`, or as `secret_value` if it is a secret; the other one is None."""

    def require_output(self, key: str) -> Any:
        """The output as a pulumi.Output that keeps its secretness."""


class NfsExport(OutputModel):
    """The NFSv4 export that a worker mounts: `address`:`export`."""

    address: str
    export: str


class ClusterOutputs(Details):
    """A cluster as its stack exported it: the outputs, and what is in `details`.

    Gate on `nccl_passed` and on nothing else: a number alone says nothing about the transport behind it.
    Bandwidths are in GB/s (10^9 bytes). `versions` are those of the software that runs on K3s. `nfs_server`
    is the export that busbar created for the workers, if any. A stack that only measured a foreign cluster
    (`measured_only`) has no hosts, endpoint and kubeconfig.
    """

    contract_version: int
    cluster_name: str
    cluster_id: str | None = None
    """Identifies the cluster as long as it exists, whatever is renamed. Absent if `measured_only`."""
    api_endpoint: str | None = None
    k3s_version: str | None = None
    versions: dict[str, str]
    nccl_busbw_gbps: StrictFloat | None = None
    nccl_expected_gbps: StrictFloat | None = None
    nccl_fraction: StrictFloat | None = None
    nccl_passed: StrictBool
    nccl_reasons: tuple[str, ...]
    nfs_server: NfsExport | None = None
    kubeconfig: Any = Field(default=None, repr=False)
    """A secret pulumi.Output[str] from a stack reference; the value as it is from a dict."""

    @classmethod
    async def from_stack(
        cls, reference: StackReference, *, accept_measured_only: bool = False
    ) -> ClusterOutputs:
        """Read a `pulumi.StackReference`: `await ClusterOutputs.from_stack(ref)` inside `pulumi.run(main)`.

        The kubeconfig stays a secret Output. Raises ContractError as `from_dict` does, and for a stack that
        only measured, unless that is accepted: a provider without a kubeconfig would use another cluster.
        """
        outputs: dict[str, Any] = {}
        for key in NAMES:
            details = await reference.get_output_details(key)
            value = details.secret_value if details.value is None else details.value
            if value is not None:
                outputs[key] = value
        read = cls.from_dict(outputs)
        if read.measured_only:
            if not accept_measured_only:
                raise ContractError(f"{MEASURED_ONLY}. Fix: name a stack that created its cluster")
            return read
        return read.model_copy(update={"kubeconfig": reference.require_output("kubeconfig")})

    @classmethod
    def from_dict(cls, outputs: Mapping[str, Any]) -> ClusterOutputs:
        """Read outputs as `pulumi stack output --json` prints them; all numbers may be floats.

        Raises ContractError for another contract version, a missing output, or one of another type.
        """
        check_version(outputs)
        missing = [key for key in NAMES if key not in outputs and key not in _OPTIONAL]
        if missing:
            raise ContractError(
                f"missing outputs: {', '.join(missing)}. Fix: run `pulumi up` on that stack to its end"
            )
        try:
            return cls.model_validate({**outputs, **unpack(outputs["details"])})
        except ValidationError as error:
            raise ContractError(problems(error)) from None
        except ValueError as error:
            raise ContractError(str(error)) from None

    @property
    def identifier(self) -> str:
        """`cluster_identifier` of a Kubernetes provider: the id, else the name."""
        return self.cluster_id or f"busbar/{self.cluster_name}"

    @property
    def measured_only(self) -> bool:
        """True if the stack only measured a cluster, and so has no hosts, endpoint and kubeconfig."""
        return self.api_endpoint is None

    @property
    def refusal(self) -> str | None:
        """Why jobs that need the fabric should not run here, for terminal output; None where they may."""
        if self.nccl_passed:
            return None
        reasons = "".join(f"\n  - {reason}" for reason in self.nccl_reasons or ("no reason was given",))
        return (
            f"cluster {self.cluster_name} has not passed its NCCL validation (nccl_passed is false):{reasons}"
        )


_SCALARS = {
    name: field for name, field in ClusterOutputs.model_fields.items() if name not in Details.model_fields
}
# Outputs that are absent if their value was not measured or found: Pulumi drops None.
_OPTIONAL = {name for name, field in _SCALARS.items() if not field.is_required()}
NAMES = (*(name for name in _SCALARS if name != "kubeconfig"), "details")
"""The outputs except the kubeconfig, in the order of their export."""


def check_version(outputs: Mapping[str, Any]) -> None:
    """Raise ContractError, with the fix, where the outputs have another contract."""
    value = outputs.get("contract_version")
    if value is None:
        raise ContractError(
            "contract_version is missing: this is not a busbar stack, or its first `pulumi up` has not "
            "finished"
        )
    version = number(value)
    if version is None or not version.is_integer():
        raise ContractError(f"contract_version is {value!r}, a whole number is expected")
    if version == CONTRACT_VERSION:
        return
    fix = (
        f"run `pulumi up` on that stack with a busbar that writes contract {CONTRACT_VERSION}"
        if version < CONTRACT_VERSION
        else f"use a busbar package that reads contract {version:.0f}"
    )
    raise ContractError(
        f"unsupported contract_version {version:.0f} (supported: {CONTRACT_VERSION}). Fix: {fix}"
    )
