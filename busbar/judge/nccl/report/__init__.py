"""Reports of a verdict: terminal, HTML, SVG."""
