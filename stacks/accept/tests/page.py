"""Writes the picture of the README: nodes and rails of simulated evidence (`make docs`)."""

from __future__ import annotations

import random
import re
from pathlib import Path

from busbar.fabric.diagnosis.page import Cells, heat_map

PICTURE = Path(__file__).resolve().parents[1] / "acceptance.svg"
NODES = [f"gpu-{number:02}" for number in range(1, 17)]
PLACES = {node: f"rail group {'A' if number < 8 else 'B'}" for number, node in enumerate(NODES)}
RAILS = 8
SLOW = ("gpu-05", 3)
STYLE = """
svg{background:#fff} text{font:10px system-ui,-apple-system,"Segoe UI",sans-serif;fill:#1b1f24}
text.n{font-family:ui-monospace,Menlo,Consolas,monospace} text.h{fill:#5b6470} text.g{font-weight:600}
"""


def picture() -> str:
    """The two rail groups beside each other, as one SVG. Rail 3 of gpu-05 reaches 71 %."""
    chance = random.Random(46)
    cells = {}
    for node in NODES:
        shares = {rail: chance.gauss(0.98, 0.01) for rail in range(RAILS)}
        shares[SLOW[1]] = 0.71 if node == SLOW[0] else shares[SLOW[1]]
        cells[node] = Cells(chance.gauss(0.99, 0.005), 0.83 if node == SLOW[0] else 0.98, shares)
    blocks = re.findall(
        r'<svg [^>]*viewBox="0 0 (\d+) (\d+)"[^>]*>(.*?)</svg>',
        heat_map(cells, NODES, {}, PLACES, RAILS),
        re.DOTALL,
    )
    width, height = sum(int(block[0]) for block in blocks) + 40, max(int(block[1]) for block in blocks) + 16
    parts, left = [], 8
    for wide, _, inside in blocks:
        parts.append(f'<g transform="translate({left} 8)">{inside}</g>')
        left += int(wide) + 24
    about = f"Heat map of {len(NODES)} nodes and {RAILS} rails: rail {SLOW[1]} of {SLOW[0]} is slow"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img"'
    )
    return f'{head} aria-label="{about}">\n<style>{STYLE}</style>\n{"".join(parts)}\n</svg>\n'


if __name__ == "__main__":
    PICTURE.write_text(picture())
