"""`python -m rails_ray.cli`: the `rails-ray` command."""

import sys

from rails_ray.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
