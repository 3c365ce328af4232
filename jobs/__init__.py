"""What is run with `ray job submit -- python -m jobs.<name>`, and the benches."""
