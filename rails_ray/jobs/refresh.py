"""Add the items of new and changed files to the current version, as a job: what `rails-ray refresh` does, with a last
line of JSON.

ray job submit -- python -m rails_ray.jobs.refresh --folder s3://bucket/items --storage s3://bucket/prefix
"""

import sys

from rails_ray.cli.main import job

if __name__ == "__main__":
    sys.exit(job("refresh"))
