"""Plots: `python -m jobs.plots.<bench>` reads the rows of a bench and writes a PNG to jobs/benches/results."""

import io
from typing import Any

from PIL import Image

from jobs.benches.record import RESULTS

COLOURS = 128  # of a PNG: a third of the bytes, and no difference that can be seen


def save(figure: Any, name: str, dpi: int = 120) -> None:
    """Write a figure of matplotlib as a small PNG."""
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=dpi)
    Image.open(drawn).convert("RGB").quantize(COLOURS).save(RESULTS / f"{name}.png", optimize=True)
