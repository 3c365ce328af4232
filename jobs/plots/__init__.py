"""Plots: `python -m jobs.plots.<bench>` reads jobs/benches/results/<bench>.jsonl and writes a PNG beside it."""
