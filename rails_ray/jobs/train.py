"""Train a model, as a job: what `rails-ray train` does, with a last line of JSON.

ray job submit -- python -m rails_ray.jobs.train emoji-mol --run demo --storage s3://bucket/prefix
"""

import sys

from rails_ray.cli.main import job

if __name__ == "__main__":
    sys.exit(job("train"))
