"""The stages as jobs: `ray job submit -- python -m rails_ray.jobs.<stage>`.

Each member does what the command of its name does. Its last line is JSON, and its exit code is the command's.
"""
