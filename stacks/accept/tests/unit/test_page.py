"""The picture of the README is the one that the page of an acceptance would show."""

from __future__ import annotations

from stacks.accept.tests.page import PICTURE, picture


def test_the_picture_is_as_the_heat_map_draws_it_now() -> None:
    assert PICTURE.read_text() == picture()
