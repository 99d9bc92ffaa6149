"""RandomPassword, RandomString and RandomId."""

from __future__ import annotations

import base64

from lab.offline.plugins.sdk.values import UNKNOWN, Secret, reveal
from lab.offline.tests.plugin_engine import Engine

PASSWORD = "random:index/randomPassword:RandomPassword"
STRING = "random:index/randomString:RandomString"
ID = "random:index/randomId:RandomId"


def test_a_password_is_secret_and_has_the_wanted_shape(random_plugin: Engine) -> None:
    wanted = {"length": 40, "special": False, "upper": False, "minNumeric": 39}
    id, _, state = random_plugin.up(PASSWORD, wanted)
    assert isinstance(state["result"], Secret) and isinstance(state["bcryptHash"], Secret)
    plain = reveal(state)
    assert id == "none", "the value must not leak into the ID"
    assert len(plain["result"]) == 40
    assert sum(character.isdigit() for character in plain["result"]) >= 39
    assert plain["result"] == plain["result"].lower() and plain["result"].isalnum()


def test_two_draws_differ(random_plugin: Engine) -> None:
    first, second = (random_plugin.up(STRING, {"length": 32})[2]["result"] for _ in range(2))
    assert first != second


def test_a_changed_keeper_draws_anew(random_plugin: Engine) -> None:
    _, checked, state = random_plugin.up(STRING, {"length": 8, "keepers": {"node": "a"}})
    again = random_plugin.check(STRING, {"length": 8, "keepers": {"node": "a"}}, checked)
    assert not random_plugin.diff(STRING, state, checked, again).changed
    news = random_plugin.check(STRING, {"length": 8, "keepers": {"node": "b"}}, checked)
    assert random_plugin.diff(STRING, state, checked, news).replaces == ["keepers.node"]


def test_an_id_is_spelled_in_four_ways(random_plugin: Engine) -> None:
    id, _, state = random_plugin.up(ID, {"byteLength": 5, "prefix": "p-"})
    data = base64.urlsafe_b64decode(id + "=" * (-len(id) % 4))
    assert state["hex"] == f"p-{data.hex()}"
    assert state["dec"] == f"p-{int.from_bytes(data, 'big')}"
    assert state["b64Std"] == f"p-{base64.b64encode(data).decode()}"


def test_a_preview_promises_nothing(random_plugin: Engine) -> None:
    _, _, state = random_plugin.up(STRING, {"length": 8}, preview=True)
    assert state["result"] is UNKNOWN


def test_a_length_that_cannot_hold_the_minimums_is_refused(random_plugin: Engine) -> None:
    assert random_plugin.failures(STRING, {"length": 3, "minLower": 4})
