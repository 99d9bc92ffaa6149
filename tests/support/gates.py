"""Every gate must be able to fail: what of that the cases of a list of gates do not show."""

from collections.abc import Callable, Iterable, Mapping, Sequence


def without_case(
    gates: Iterable[Callable[..., object]],
    fails: Iterable[str],
    unknown: Iterable[str],
    never_unknown: Mapping[str, str],
) -> list[str]:
    """One sentence per case that is missing: which gate, and what to write.

    A gate has the name of its function, with hyphens. `fails`, `unknown`: the codes of the cases in which a
    gate fails or lacks its evidence; `never_unknown`: gate -> why it always has its evidence.
    """
    names = [gate.__name__.replace("_", "-") for gate in gates]
    failing, lacking = (({code.partition(".")[0] for code in each}) for each in (fails, unknown))
    wrong, table = lacking & never_unknown.keys(), "UNKNOWN, or the reason why there is none to NEVER_UNKNOWN"
    return [
        *_sentences(names, failing, "no case that it fails", "FAILS"),
        *_sentences(names, lacking | never_unknown.keys(), "no case that leaves it unknown", table),
        *(f"{name} is no gate: remove its cases" for name in sorted(failing | lacking) if name not in names),
        *(f"gate {name} can be unknown: remove it from NEVER_UNKNOWN" for name in sorted(wrong)),
    ]


def _sentences(names: Sequence[str], shown: Iterable[str], lack: str, table: str) -> list[str]:
    fix = f"Fix: add its code, with a log, to {table}"
    return [f"gate {name} has {lack}. {fix}" for name in names if name not in shown]
