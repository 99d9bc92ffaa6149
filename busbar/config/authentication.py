"""Users of the Kubernetes API beside the cluster's own certificates: issuers of JSON web tokens (OIDC).

Names of keys, and what is valid, are those of `JWTAuthenticator` in apiserver.config.k8s.io (Kubernetes 1.31
to 1.35, staging/src/k8s.io/apiserver: pkg/apis/apiserver/v1beta1/types.go, validation/validation.go), so that
examples of Kubernetes can be copied. `egressSelectorType` is left out: servers reach services of the cluster
themselves.
"""

from __future__ import annotations

import ssl
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from busbar.config.values import Matching, Model, NonEmpty, invalid


def _certificates(value: str) -> str:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=value)
    except (ssl.SSLError, ValueError):
        raise invalid(
            "is not a certificate in PEM: `-----BEGIN CERTIFICATE-----`, over several lines"
        ) from None
    return value


_DISCOVERY = "/.well-known/openid-configuration"


def _issuer(value: str) -> str:
    if value.endswith(_DISCOVERY):
        raise invalid(f"has the path that is added to it. Fix: {value.removesuffix(_DISCOVERY)}")
    return value


HttpsUrl = Annotated[
    str, Matching(r"https://[^\s/@?#]+(/[^\s?#]*)?", "an https:// URL without login, query and fragment")
]
Certificates = Annotated[str, AfterValidator(_certificates)]
Expression = Annotated[str, Field(min_length=1)]


class Issuer(Model):
    """Who signs the tokens, and for whom they must be."""

    url: Annotated[HttpsUrl, AfterValidator(_issuer)] = Field(
        description="The claim `iss` of the tokens; keys are found through it."
    )
    discoveryURL: HttpsUrl | None = Field(
        default=None, description="Where keys are found, if not at URL/.well-known/openid-configuration."
    )
    certificateAuthority: Certificates | None = Field(
        default=None,
        description="CA of the issuer's own certificate in PEM; by default those of the servers.",
    )
    audiences: list[NonEmpty] = Field(
        min_length=1, description="The claim `aud` of a token must have one of these (client IDs)."
    )
    audienceMatchPolicy: Literal["MatchAny"] | None = Field(
        default=None, description="Required with more than one audience."
    )


class ClaimValidationRule(Model):
    """What a claim must be: `claim` with `requiredValue`, or an expression."""

    claim: NonEmpty | None = Field(default=None, description="Name of a claim.")
    requiredValue: NonEmpty | None = Field(default=None, description="The value that it must have.")
    expression: Expression | None = Field(
        default=None, description="CEL over `claims` that must be true, such as claims.hd == 'example.com'."
    )
    message: NonEmpty | None = Field(default=None, description="What is logged where `expression` is false.")


class ClaimOrExpression(Model):
    """A claim, or CEL over `claims`."""

    claim: NonEmpty | None = Field(default=None, description="Name of a claim.")
    expression: Expression | None = Field(default=None, description="CEL over `claims`.")


class PrefixedClaimOrExpression(ClaimOrExpression):
    """A claim with a prefix, or CEL over `claims`."""

    prefix: str | None = Field(
        default=None, description="Put before the claim's value; required with `claim`, may be empty."
    )


class ExtraMapping(Model):
    """One more attribute of the user."""

    key: Annotated[
        str, Matching(r"[a-z0-9.-]+/[a-z0-9./_-]+", "DOMAIN/NAME in lower case, such as example.com/team")
    ] = Field(description="DOMAIN/NAME in lower case.")
    valueExpression: Expression = Field(description="CEL over `claims` that gives its value.")


class ClaimMappings(Model):
    """Who the user of a token is."""

    username: PrefixedClaimOrExpression = Field(description="The user's name.")
    groups: PrefixedClaimOrExpression | None = Field(default=None, description="The user's groups.")
    uid: ClaimOrExpression | None = Field(default=None, description="The user's UID.")
    extra: list[ExtraMapping] = Field(default=[], description="Further attributes of the user.")


class UserValidationRule(Model):
    """What a user must be."""

    expression: Expression = Field(
        description="CEL over `user` that must be true, such as !user.username.startsWith('system:')."
    )
    message: NonEmpty | None = Field(default=None, description="What is logged where it is false.")


class JwtAuthenticator(Model):
    """An issuer whose tokens the Kubernetes API accepts, as JWTAuthenticator of apiserver.config.k8s.io."""

    issuer: Issuer = Field(description="Who signs the tokens.")
    claimValidationRules: list[ClaimValidationRule] = Field(
        default=[], description="What must be true of a token's claims."
    )
    claimMappings: ClaimMappings = Field(description="Name and groups of the user, from claims.")
    userValidationRules: list[UserValidationRule] = Field(
        default=[], description="What must be true of the user."
    )

    def to_kubernetes(self) -> dict[str, Any]:
        """As it is written into the AuthenticationConfiguration."""
        return self.model_dump(exclude_defaults=True)


class Authentication(Model):
    """Users of the Kubernetes API. What they may do is RBAC: ClusterRoleBindings of the site."""

    jwt: list[JwtAuthenticator] = Field(
        default=[],
        description="Issuers of tokens (OIDC); servers load a change without a restart.",
    )
