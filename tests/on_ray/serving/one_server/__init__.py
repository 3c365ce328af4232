"""Tests that ask one server, which is up for all of them."""
