"""The benches; and the jobs of `rails_ray.jobs` by the names that they have in the repository."""
