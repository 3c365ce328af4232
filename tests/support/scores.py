"""Scores of items, drawn."""

import torch
from hypothesis import strategies as st


@st.composite
def tied_scores(draw: st.DrawFn) -> torch.Tensor:
    """Scores with many ties: the hard case of a deterministic order."""
    lines = draw(st.integers(1, 4))
    width = draw(st.integers(1, 12))
    value = st.sampled_from([-1.0, 0.0, 0.5, 0.5, 1.0])
    return torch.tensor(draw(st.lists(st.lists(value, min_size=width, max_size=width), min_size=lines, max_size=lines)))
