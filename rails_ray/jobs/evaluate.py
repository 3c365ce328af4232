"""Measure a run or a version, as a job: what `rails-ray evaluate` does, with a last line of JSON.

ray job submit -- python -m rails_ray.jobs.evaluate --version demo-1 --storage s3://bucket/prefix
"""

import sys

from rails_ray.cli.main import job

if __name__ == "__main__":
    sys.exit(job("evaluate"))
