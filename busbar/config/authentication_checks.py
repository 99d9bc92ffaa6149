"""Checks of k3s.authentication, which the API server would make at its start.

Each yields `<path>: <what>. Fix: <what to do>`.
"""

from __future__ import annotations

from collections.abc import Iterator

from busbar.config.authentication import (
    ClaimOrExpression,
    ClaimValidationRule,
    JwtAuthenticator,
    PrefixedClaimOrExpression,
)
from busbar.config.partial import PartialConfig

PATH = "k3s.authentication.jwt"


def jwt(config: PartialConfig) -> Iterator[str]:
    """Each issuer once, and what belongs together in an authenticator."""
    seen: dict[str, int] = {}
    for index, each in enumerate(config.k3s.authentication.jwt):
        path, issuer = f"{PATH}[{index}]", each.issuer
        if (first := seen.setdefault(issuer.url, index)) != index:
            yield f"{path}.issuer.url: {issuer.url!r} is also that of {PATH}[{first}]. Fix: keep one"
        if len(issuer.audiences) > 1 and issuer.audienceMatchPolicy is None:
            yield (
                f"{path}.issuer.audienceMatchPolicy: missing: there is more than one audience. "
                "Fix: set it to MatchAny"
            )
        for number, rule in enumerate(each.claimValidationRules):
            yield from _rule(f"{path}.claimValidationRules[{number}]", rule)
        mappings = each.claimMappings
        yield from _mapping(f"{path}.claimMappings.username", mappings.username)
        for name in ("groups", "uid"):
            if mapping := getattr(mappings, name):
                yield from _mapping(f"{path}.claimMappings.{name}", mapping)
        if _takes_unverified_email(each):
            yield (
                f"{path}.claimMappings.username.expression: uses claims.email, but nothing asks for "
                "claims.email_verified, and the API server does not start. Fix: add a claimValidationRule "
                "with the expression claims.?email_verified.orValue(true) == true"
            )


def _rule(path: str, rule: ClaimValidationRule) -> Iterator[str]:
    yield from _claim_or_expression(path, rule.claim, rule.expression)
    if rule.claim and rule.requiredValue is None:
        yield f"{path}.requiredValue: missing. Fix: give the value that {rule.claim!r} must have"
    if rule.expression and rule.requiredValue:
        yield f"{path}.requiredValue: given with an expression. Fix: remove one of the two"
    if rule.claim and rule.message:
        yield f"{path}.message: given with a claim; it is for an expression. Fix: remove it"


def _mapping(path: str, mapping: ClaimOrExpression) -> Iterator[str]:
    yield from _claim_or_expression(path, mapping.claim, mapping.expression)
    if not isinstance(mapping, PrefixedClaimOrExpression):
        return
    if mapping.claim and mapping.expression is None and mapping.prefix is None:
        yield f"{path}.prefix: missing: a claim needs one. Fix: set it, such as 'oidc:'; '' is none"
    if mapping.expression and mapping.claim is None and mapping.prefix is not None:
        yield f"{path}.prefix: given with an expression. Fix: write it into the expression"


def _claim_or_expression(path: str, claim: str | None, expression: str | None) -> Iterator[str]:
    if (claim is None) == (expression is None):
        has = "has claim and expression" if claim else "has neither claim nor expression"
        yield f"{path}: {has}. Fix: give one of the two"


def _takes_unverified_email(each: JwtAuthenticator) -> bool:
    """pkg/apis/apiserver/validation/validation.go: `claims.email` needs `claims.email_verified` somewhere."""
    username = each.claimMappings.username.expression or ""
    rules = [rule.expression or "" for rule in each.claimValidationRules]
    extra = [mapping.valueExpression for mapping in each.claimMappings.extra]
    verified = any("email_verified" in text for text in (username, *rules, *extra))
    return "claims.email" in username.replace("claims.email_verified", "") and not verified


def warnings(config: PartialConfig) -> Iterator[str]:
    """Issuers that could make anybody an administrator, by a group system:masters."""
    for index, each in enumerate(config.k3s.authentication.jwt):
        groups = each.claimMappings.groups
        if groups and not groups.prefix and not each.userValidationRules:
            yield (
                f"{PATH}[{index}].claimMappings.groups: without a prefix the issuer can name the group "
                "system:masters, which may do everything. Fix: set a prefix, or add a userValidationRule "
                "with the expression user.groups.all(group, !group.startsWith('system:'))"
            )
