"""A default search, as `rails-ray tune --target-recall` would choose it."""

from rails_ray.families.default_searches import DefaultSearch

AVERAGE = DefaultSearch(
    method="average",
    params={"num_candidates": 12},
    k=4,
    target_recall=0.9,
    recall=0.95,
    low=0.91,
    ms=0.5,
    queries="200 queries of split valid",
    created_at="2026-01-01T00:00:00Z",
)
