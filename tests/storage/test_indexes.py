"""Records of indexes."""

from pathlib import Path

from rails_ray.storage import indexes
from rails_ray.storage.filesystem import Storage


def test_a_recall_is_in_the_record_alone(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    indexes.write_built(storage, "v", 0, "average", b"one", 0.0, 0.5)
    indexes.write_built(storage, "v", 1, "average", b"two", 0.0, 0.25)
    indexes.write_built(storage, "v", 0, "component-0", b"three", 0.0)  # as an earlier release wrote it
    entries = indexes.read_built(storage, "v", 2, ["average", "component-0"])
    assert [(entry.shard, entry.name) for entry in entries] == [(0, "average"), (0, "component-0"), (1, "average")]
    assert indexes.read_recalls(storage, "v", entries) == {"average": 0.25}
    assert indexes.read_recalls(storage, "other", entries) == {}
