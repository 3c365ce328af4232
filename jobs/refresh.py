"""`python -m rails_ray.jobs.refresh` by the name that it has in the repository."""

import sys

from rails_ray.cli.main import job

if __name__ == "__main__":
    sys.exit(job("refresh"))
