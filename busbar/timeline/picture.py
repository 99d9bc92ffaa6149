"""A timeline as SVG: one bar per step, the critical path in another colour. No script, no font, no link."""

from __future__ import annotations

from html import escape

from busbar.nccl.report.frame import steps as ticks
from busbar.timeline.steps import Step, Timeline

WIDTH, NAMES, RIGHT, TOP, ROW, BAR = 1000, 290, 70, 64, 18, 12
MOST_ROWS = 60

STYLE = """
text{font:12px system-ui,-apple-system,"Segoe UI",sans-serif;fill:#1b1f24} .quiet{fill:#5b6470}
.title{font-weight:600;font-size:14px} .grid{stroke:#e3e6ea} .bar{fill:#9db7d5} .path{fill:#c2570c}
.failed{fill:#b3261e} .back{fill:#fff}
@media (prefers-color-scheme:dark){text{fill:#e8eaed} .quiet{fill:#9aa4b0} .grid{stroke:#2b3139}
.bar{fill:#3d5f86} .path{fill:#ffa35c} .failed{fill:#ff8a80} .back{fill:#14171a}}
"""


def picture(timeline: Timeline) -> str:
    """The SVG. Of more than 60 steps the longest are drawn, and all of the critical path."""
    critical = {id(wait.step) for wait in timeline.critical_path()}
    shown = sorted(timeline.steps, key=lambda step: (id(step) not in critical, -step.seconds))[:MOST_ROWS]
    shown.sort(key=lambda step: (step.began, step.ended))
    left_out = len(timeline.steps) - len(shown)
    height = TOP + ROW * len(shown) + 34
    scale = (WIDTH - NAMES - RIGHT) / (timeline.seconds or 1.0)
    base = TOP + ROW * len(shown)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<title>{escape(_title(timeline))}</title><style>{STYLE}</style>",
        f'<rect class="back" width="{WIDTH}" height="{height}"/>',
        f'<text class="title" x="12" y="24">{escape(_title(timeline))}</text>',
        f'<rect class="path" x="12" y="36" width="{BAR}" height="{BAR}"/>',
        '<text class="quiet" x="30" y="46">critical path: each step waited for the one before it</text>',
    ]
    for second in ticks(timeline.seconds or 1.0):
        x = NAMES + second * scale
        lines.append(f'<path class="grid" d="M{x:.1f} {TOP - 4}V{base}"/>')
        lines.append(
            f'<text class="quiet" x="{x:.1f}" y="{base + 16}" text-anchor="middle">{second:g} s</text>'
        )
    lines += [
        _row(step, TOP + ROW * row, scale, critical=id(step) in critical) for row, step in enumerate(shown)
    ]
    if left_out:
        lines.append(
            f'<text class="quiet" x="12" y="{base + 16}">{left_out} shorter steps are left out</text>'
        )
    return "\n".join([*lines, "</svg>", ""])


def _title(timeline: Timeline) -> str:
    steps = f"{len(timeline.steps)} steps in {timeline.seconds:.0f} s"
    return f"update of {timeline.stack}, {timeline.began}: {steps}"


def _row(step: Step, y: float, scale: float, *, critical: bool) -> str:
    kind = "failed" if step.verb == "failed" else "path" if critical else "bar"
    x, width = NAMES + step.began * scale, max(1.0, step.seconds * scale)
    name = step.name if len(step.name) <= 42 else f"{step.name[:39]}..."
    return (
        f'<text x="12" y="{y + 10}">{escape(name)}</text>'
        f'<rect class="{kind}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}" rx="2">'
        f"<title>{escape(step.name)}: {step.verb}, {step.began:.1f} s to {step.ended:.1f} s</title></rect>"
        f'<text class="quiet" x="{x + width + 4:.1f}" y="{y + 10}">{step.seconds:.1f} s</text>'
    )
