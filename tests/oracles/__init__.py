"""Every equation as naive loops: short, obviously right, slow. Lists and floats in, lists and floats out.

The letters are those of `rails_ray/__init__.py`.
"""
