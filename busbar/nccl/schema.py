"""The version of the verdict's JSON; apart from the verdict, because the program needs it and no gate."""

from __future__ import annotations

from typing import Literal

# 2: each check has a code; `simulated` took the place of `stand_ins`
SCHEMA: Literal[2] = 2
