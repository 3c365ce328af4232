"""Storage: where runs and index versions live, behind one object with the paths of a storage root.

    data/<name>/                            a packaged data set, as Parquet
    runs/<run>/                             model.safetensors, validation.json, training.json; config.json last
    runs/<run>/ray_train/                   what Ray Train keeps of the run
    versions/<version>/shard-000/*.parquet  items of one shard
    versions/<version>/config.json, model.safetensors
    versions/<version>/encoded.json         the parts that encoding wrote
    versions/<version>/manifest.json        written last, by publishing: the version exists from here on
    CURRENT                                 names the version that is served

| member       | what it does                                                     |
|--------------|------------------------------------------------------------------|
| `filesystem` | read, write atomically, list                                     |
| `parquet`    | tables with checked columns; parts of an index                   |
| `runs`       | trained models                                                   |
| `manifest`   | what a version consists of; publish and open it, damage detected |
| `shards`     | the items of a version, every byte checked                       |
"""
