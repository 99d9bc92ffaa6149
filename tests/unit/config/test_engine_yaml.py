"""Plain values are read as the engine reads them (tests/engine/test_engine_yaml.py compares)."""

import pytest

from busbar.config.engine_yaml import NotYaml, ambiguous, compose, construct


def test_values_and_merged_keys_are_read() -> None:
    text = "base: &base {gpus: 8, rails: 8}\npools: {h100: {<<: *base, rails: 4}}\nfloor: 1e3\nend: 12:30:00"
    found = construct(compose(text))
    assert found["pools"] == {"h100": {"gpus": 8, "rails": 4}}
    assert (found["floor"], type(found["floor"]), found["end"]) == (1000, int, "12:30:00")
    assert list(ambiguous(compose(text))) == []


@pytest.mark.parametrize(
    "value", ["0022", "01", "09", "2026-11-26", "0X1F", ".5e1", "1e1_0", "=", ".inf", "9223372036854775808"]
)
def test_a_plain_value_that_the_engine_reads_differently_is_named_with_its_path(value: str) -> None:
    quoted = f"pools:\n  - rate: '{value}'\n"
    assert list(ambiguous(compose(quoted.replace("'", "")))) == [(("pools", 0, "rate"), value)]
    assert list(ambiguous(compose(quoted))) == []
    assert construct(compose(quoted)) == {"pools": [{"rate": value}]}


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("a:\n  b: 1\n  b: 2\n", "line 3, column 3: duplicate key 'b'"),
        ("a: {{ x }}\n", "line 1, column 5: a key is not a text; a value that begins with {{"),
        ("a: [\n", "line 2, column 1"),
        ("a: *none\n", "line 1, column 4: found undefined alias"),
        ("a:\n  b: 2026-13-01\n", "line 2, column 6: '2026-13-01' is not a timestamp; a text needs quotes"),
        ("a: !!bool maybe\n", "line 1, column 4: 'maybe' is not a bool"),
        ("a: 9" + "9" * 5000, "line 1, column 4: '9999"),
        ("a: &a\n  b: [*a]\n", "it contains itself, is nested too deeply"),
        ("a: " + "[" * 2000 + "]" * 2000, "it contains itself, is nested too deeply"),
        ("a: b\x07\n", "unacceptable character #x0007: special characters"),
        ('a: "\\UFFFFFFFF"\n', "it contains itself, is nested too deeply, or has a character"),
    ],
)
def test_what_is_no_yaml_is_named_with_its_line(text: str, where: str) -> None:
    with pytest.raises(NotYaml) as error:
        construct(compose(text))
    assert str(error.value).startswith(where)


def test_an_empty_text_has_no_value() -> None:
    assert construct(compose("# only a comment\n")) is None
