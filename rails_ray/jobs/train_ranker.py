"""Train a heavy ranker, as a job: what `rails-ray train-ranker` does, with a last line of JSON.

ray job submit -- python -m rails_ray.jobs.train_ranker --folder /data/mine --to /data/ranker
"""

import sys

from rails_ray.cli.main import job

if __name__ == "__main__":
    sys.exit(job("train-ranker"))
