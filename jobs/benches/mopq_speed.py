"""Timings of `mopq`."""


def main(num_items: int, repeats: int) -> None:
    """To come."""
