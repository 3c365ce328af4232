"""Plots: `python -m jobs.plots.<bench>` reads the rows of a bench and writes a PNG to jobs/benches/results."""

import io
from typing import Any

from PIL import Image

from jobs.benches.record import RESULTS

# Of the twelve plots no pixel moved by more than 14 of 255, in a third of the bytes. Pillow's usual method, median cut,
# moved some by 111, so that two lines of a legend had one colour.
COLOURS, METHOD = 256, Image.Quantize.MAXCOVERAGE


def save(figure: Any, name: str, dpi: int = 120) -> None:
    """Write a figure of matplotlib as a small PNG."""
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=dpi)
    small = Image.open(drawn).convert("RGB").quantize(COLOURS, METHOD, dither=Image.Dither.NONE)
    small.save(RESULTS / f"{name}.png", optimize=True)
