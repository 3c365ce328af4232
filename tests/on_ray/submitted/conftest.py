"""One head node, with a GPU that is only counted, for all jobs that are submitted here."""

from collections.abc import Iterator

import pytest

from support.head_node import HeadNode, head_node


@pytest.fixture(scope="package")
def head() -> Iterator[HeadNode]:
    with head_node(num_gpus=1) as started:
        yield started
