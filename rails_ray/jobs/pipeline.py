"""Train, encode, evaluate, publish, as a job: what `rails-ray pipeline` does, with a last line of JSON.

ray job submit -- python -m rails_ray.jobs.pipeline emoji-mol --run demo --storage s3://bucket/prefix
"""

import sys

from rails_ray.cli.main import job

if __name__ == "__main__":
    sys.exit(job("pipeline"))
