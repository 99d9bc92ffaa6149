"""Names and numbers in sentences."""

import pytest

from busbar.text import counted, listed


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 nodes"), (1, "1 node"), (2, "2 nodes"), (None, "? nodes")]
)
def test_one_is_not_counted_in_the_plural(number: int | None, text: str) -> None:
    assert counted(number, "node") == text


@pytest.mark.parametrize(
    ("limit", "text"), [(1, "a and 2 more"), (2, "a, b and 1 more"), (3, "a, b, c"), (4, "a, b, c")]
)
def test_of_many_names_the_first_are_listed_and_the_others_counted(limit: int, text: str) -> None:
    assert listed(["a", "b", "c"], limit) == text
