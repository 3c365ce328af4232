"""Benches: one question a file. Each appends raw rows and the environment to jobs/benches/results/<bench>.jsonl.

`jobs.plots` reads rows and draws; it never runs a bench. docs/log keeps what was tried, negatives too.
"""
