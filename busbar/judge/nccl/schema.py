"""The version of the verdict's JSON; apart from the verdict, because the program needs it and no gate."""

from __future__ import annotations

from typing import Literal

# 2: each check has a code; `simulated` took the place of `stand_ins`
SCHEMA: Literal[2] = 2

# Raised when a log may get another verdict than before, or another expectation: then kept logs are judged
# again (busbar.outputs.again). 2: size classes, GPU names, link layers, rise of the curve;
# 3: errors in unknown words after the start
JUDGE = 3
