"""Storage: where runs and index versions live, behind one object with the paths of a storage root.

    data/<name>/                            a packaged data set, as Parquet
    runs/<run>/begun.json                   config of a run that was begun, and its pieces; its name is taken
    runs/<run>/checkpoint.safetensors       where it goes on if it is cut off; gone when it has finished
    runs/<run>/                             model.safetensors, validation.json, training.json; config.json last
    runs/<run>/codes.parquet                of SOLAR: the code of each item
    runs/<run>/<piece>/                     of several pieces: a run for each (chunk-000 and so on of SOLAR)
    versions/<version>/begun.json           what the version is being encoded from; its name is taken
    versions/<version>/codes.parquet        of SOLAR: as they were chosen when encoding began
    versions/<version>/shard-000/*.parquet  items of one shard
    versions/<version>/parts/*.json         a record of each part that was written, from which encoding goes on
    versions/<version>/config.json, model.safetensors (of SOLAR one for each chunk, in its folder)
    versions/<version>/encoded.json         all parts: encoding has finished
    versions/<version>/manifest.json        written by publishing: the version exists from here on
    CURRENT                                 names the version that is served, and the checksum of its manifest

| member       | what it does                                                                 |
|--------------|------------------------------------------------------------------------------|
| `filesystem` | read, write atomically or on a condition, list: a local folder or S3         |
| `local`      | files in a folder                                                            |
| `s3`         | files in a bucket                                                            |
| `parquet`    | tables with checked columns; parts of an index                               |
| `runs`       | trained models, and runs that have not finished                              |
| `codes`      | the codes of items that are found by them                                    |
| `manifest`   | what a version consists of; damage detected                                  |
| `parts`      | the parts of a version while it is encoded: none twice, none lost            |
| `versions`   | publish, list, verify, roll back: which versions there are, which is current |
| `shards`     | the items of a version, every byte checked                                   |
"""
