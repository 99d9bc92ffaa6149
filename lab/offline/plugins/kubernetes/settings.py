"""The provider's configuration: input, environment variable, default, in this order."""

from __future__ import annotations

import os
from dataclasses import dataclass

_PREFIX = "kubernetes:config:"


@dataclass(frozen=True)
class Settings:
    """What pulumi-kubernetes 4.34 reads in Configure, as far as it is honoured here."""

    kubeconfig: str = ""
    context: str = ""
    cluster: str = ""
    namespace: str = ""
    delete_unreachable: bool = False
    skip_update_unreachable: bool = False
    server_side_apply: bool = True
    patch_force: bool = False
    upsert: bool = False
    mutable_config_maps: bool = False
    mutable_secrets: bool = False

    @staticmethod
    def read(variables: dict[str, str]) -> Settings:
        """The settings in the engine's configuration variables (`kubernetes:config:NAME`)."""

        def text(name: str) -> str:
            return variables.get(_PREFIX + name, "")

        def flag(name: str, variable: str, default: bool = False) -> bool:
            given = variables.get(_PREFIX + name, os.environ.get(variable))
            return default if given is None else given == "true"

        return Settings(
            kubeconfig=text("kubeconfig"),
            context=text("context"),
            cluster=text("cluster"),
            namespace=text("namespace"),
            delete_unreachable=flag("deleteUnreachable", "PULUMI_K8S_DELETE_UNREACHABLE"),
            skip_update_unreachable=flag("skipUpdateUnreachable", "PULUMI_K8S_SKIP_UPDATE_UNREACHABLE"),
            server_side_apply=flag("enableServerSideApply", "PULUMI_K8S_ENABLE_SERVER_SIDE_APPLY", True),
            patch_force=flag("enablePatchForce", "PULUMI_K8S_ENABLE_PATCH_FORCE"),
            upsert=flag("upsertExistingObjects", "PULUMI_K8S_UPSERT_EXISTING_OBJECTS"),
            mutable_config_maps=flag("enableConfigMapMutable", "PULUMI_K8S_ENABLE_CONFIGMAP_MUTABLE"),
            mutable_secrets=flag("enableSecretMutable", "PULUMI_K8S_ENABLE_SECRET_MUTABLE"),
        )
