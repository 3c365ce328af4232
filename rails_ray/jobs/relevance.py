"""Let a heavy ranker score items for queries, as a job: what `rails-ray relevance` does, with a last line of JSON.

ray job submit -- python -m rails_ray.jobs.relevance --name m --folder s3://b/d --ranker.path a:B --storage s3://b/p
"""

import sys

from rails_ray.cli.main import job

if __name__ == "__main__":
    sys.exit(job("relevance"))
