"""Tests here start many groups of processes: what all of them import is imported once."""

import multiprocessing

multiprocessing.set_forkserver_preload(
    ["pyarrow.parquet", "rails_ray.families.dual_encoder.train", "torch.nn.parallel"]
)
