"""Which interface a worker on several nodes names; that such workers find each other is in `test_nodes`."""

import psutil
import pytest

from rails_ray.on_ray.process_groups import interface_of


def test_an_interface_is_found_by_its_address() -> None:
    for name, addresses in psutil.net_if_addrs().items():
        assert all(interface_of(own.address) is not None for own in addresses), name
    assert psutil.net_if_addrs()[interface_of("127.0.0.1") or ""][0].address == "127.0.0.1"


@pytest.mark.parametrize("address", ["203.0.113.7", ""])
def test_an_address_of_another_machine_has_none(address: str) -> None:
    assert interface_of(address) is None
