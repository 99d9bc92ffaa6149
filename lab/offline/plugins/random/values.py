"""Random values that are drawn once and kept in the state; every changed input draws a new one.

Inputs, defaults and outputs as in pulumi-random 4.21 (provider/cmd/pulumi-resource-random/schema.json).
"""

from __future__ import annotations

import base64
import secrets
import string
from typing import Any, Final

from lab.offline.plugins.sdk import structural
from lab.offline.plugins.sdk.resource import Call, Difference, Failure, ProviderError, Resource
from lab.offline.plugins.sdk.values import UNKNOWN, Properties, Secret, Unknown, reveal

_SPECIAL: Final = "!@#$%&*()-_=+[]{}<>:?"
_CLASSES: Final = ("lower", "upper", "numeric", "special")
_BCRYPT_LONGEST_BYTES: Final = 72


class _Drawn(Resource):
    """A value whose every input forces a replacement."""

    inputs: frozenset[str]
    required: str
    outputs: tuple[str, ...]

    def check(self, call: Call, olds: Properties, news: Properties) -> tuple[Properties, list[Failure]]:
        if reveal(news.get(self.required)) is None:
            return news, [Failure(self.required, f"Missing required property {self.required!r}")]
        return news, self.problems(reveal(news))

    def problems(self, news: Properties) -> list[Failure]:
        """What is wrong with the revealed inputs."""
        return []

    def diff(self, call: Call, id: str, state: Properties, news: Properties) -> Difference:
        olds = (
            call.old_inputs
            if call.old_inputs is not None
            else {key: value for key, value in state.items() if key in self.inputs and key in news}
        )
        wanted = {key: value for key, value in news.items() if not key.startswith("__")}
        before = {key: value for key, value in olds.items() if not key.startswith("__")}
        return Difference(
            {path: f"{kind}_REPLACE" for path, kind in structural.changes(before, wanted).items()}
        )

    def create(self, call: Call, inputs: Properties) -> tuple[str, Properties]:
        if call.preview:
            return "", {**inputs, **dict.fromkeys(self.outputs, UNKNOWN)}
        return self.draw(inputs)

    def draw(self, inputs: Properties) -> tuple[str, Properties]:
        """The ID and the state with a freshly drawn value."""
        raise NotImplementedError

    def update(self, call: Call, id: str, state: Properties, news: Properties) -> Properties:
        raise ProviderError("a random value cannot be changed in place")


class RandomString(_Drawn):
    """`length` characters of the wanted classes, at least `min...` of each."""

    inputs = frozenset(
        {
            "length",
            "keepers",
            "overrideSpecial",
            "number",
            *_CLASSES,
            *(f"min{name.title()}" for name in _CLASSES),
        }
    )
    required = "length"
    outputs: tuple[str, ...] = ("result",)

    def problems(self, news: Properties) -> list[Failure]:
        least = [news.get(f"min{name.title()}", 0) for name in _CLASSES]
        if any(isinstance(value, Unknown) for value in (news["length"], *least)):
            return []
        if news["length"] < max(1, sum(least)):
            return [
                Failure("length", f"length {news['length']} is below 1 or below the sum of the min* values")
            ]
        return []

    def draw(self, inputs: Properties) -> tuple[str, Properties]:
        settings = self.settings(reveal(inputs))
        result = _characters(settings)
        return result, {**settings, **inputs, "result": result}

    @staticmethod
    def settings(plain: Properties) -> Properties:
        """The inputs with the defaults of those that were not given."""
        numeric = plain.get("numeric", plain.get("number", True))
        settings: dict[str, Any] = {name: plain.get(name, True) for name in _CLASSES}
        settings |= {f"min{name.title()}": plain.get(f"min{name.title()}", 0) for name in _CLASSES}
        return {**plain, **settings, "numeric": numeric, "number": numeric}


class RandomPassword(RandomString):
    """A RandomString whose result is secret, with its bcrypt hash."""

    outputs = ("result", "bcryptHash")

    def create(self, call: Call, inputs: Properties) -> tuple[str, Properties]:
        id, state = super().create(call, inputs)
        return id, {**state, **{name: Secret(state[name]) for name in self.outputs}}

    def draw(self, inputs: Properties) -> tuple[str, Properties]:
        result, state = super().draw(inputs)
        return "none", {**state, "bcryptHash": _bcrypt(result)}


class RandomId(_Drawn):
    """`byteLength` random bytes in several spellings, each with `prefix` in front."""

    inputs = frozenset({"byteLength", "keepers", "prefix"})
    required = "byteLength"
    outputs = ("b64Std", "b64Url", "dec", "hex")

    def draw(self, inputs: Properties) -> tuple[str, Properties]:
        plain = reveal(inputs)
        data, prefix = secrets.token_bytes(int(plain["byteLength"])), plain.get("prefix") or ""
        url = base64.urlsafe_b64encode(data).decode().rstrip("=")
        state = {
            **inputs,
            "b64Std": prefix + base64.b64encode(data).decode(),
            "b64Url": prefix + url,
            "dec": prefix + str(int.from_bytes(data, "big")),
            "hex": prefix + data.hex(),
        }
        return url, state


def _characters(settings: Properties) -> str:
    alphabets = {
        "lower": string.ascii_lowercase,
        "upper": string.ascii_uppercase,
        "numeric": string.digits,
        "special": settings.get("overrideSpecial") or _SPECIAL,
    }
    allowed = "".join(alphabets[name] for name in _CLASSES if settings[name])
    if not allowed:
        raise ProviderError("no characters to draw from: lower, upper, numeric and special are all false")
    drawn = [
        secrets.choice(alphabets[name])
        for name in _CLASSES
        for _ in range(int(settings[f"min{name.title()}"]))
    ]
    drawn += [secrets.choice(allowed) for _ in range(int(settings["length"]) - len(drawn))]
    secrets.SystemRandom().shuffle(drawn)
    return "".join(drawn)


def _bcrypt(text: str) -> str:
    import bcrypt

    return bcrypt.hashpw(text.encode()[:_BCRYPT_LONGEST_BYTES], bcrypt.gensalt(10)).decode()
