"""Storage of runs and index versions: one object reads and writes paths below a storage root.

    data/<name>/                            a packaged data set, as Parquet
    relevance/<name>/                       a relevance matrix: a data set, with its scores in blocks; matrix.json last
    runs/<run>/begun.json                   config and pieces of a run that was begun; reserves its name
    runs/<run>/checkpoint.safetensors       where the run resumes; deleted when it has finished
    runs/<run>/                             model.safetensors, validation.json, training.json; config.json last
    runs/<run>/codes.parquet                SOLAR: the code of each item
    runs/<run>/<piece>/                     a run for each piece, if there are several (SOLAR: chunk-000, ...)
    versions/<version>/begun.json           what the version is encoded from; reserves its name
    versions/<version>/codes.parquet        SOLAR: the codes chosen when encoding began
    versions/<version>/quantizer.safetensors, surrogate.safetensors    fitted when encoding began, if asked for
    versions/<version>/parts/*.json         a record of each written part, so that encoding can resume
    versions/<version>/indexes/*.json       likewise of each index
    versions/<version>/config.json, model.safetensors (SOLAR: one per chunk, in its folder)
    versions/<version>/encoded.json         all parts: encoding has finished
    versions/<version>/manifest.json        written by publishing: the version exists from here on
    objects/<sha256>                        parts and indexes, named by their content, which versions share
    CURRENT                                 names the current version, and the checksum of its manifest
    tags/<tag>.json                         names a version, and keeps it
    readers/<version>/<id>.json             a server that reads a version, until when
    intents/<id>.json                       a change that is under way, until when
    collecting.json                         the collection that is under way, until when

| member         | what it does                                                                |
|----------------|-----------------------------------------------------------------------------|
| `filesystem`   | read, write atomically or conditionally, list: a folder or a bucket         |
| `local`        | files in a folder                                                           |
| `s3`           | files in a bucket of S3, or of a server that speaks its protocol            |
| `object_store` | files in a container of Azure or a bucket of Google Cloud                   |
| `remote`       | what both need: ranges of an object, a check of conditional writes          |
| `tables`       | users' tables in Parquet: one file or many, read and checked batch by batch |
| `ids`          | ids of items as a column: found by id, digested                             |
| `numbers`      | arrays of Arrow as numpy's, and back                                        |
| `parquet`      | parts of an index                                                           |
| `runs`         | trained models, and runs that have not finished                             |
| `relevances`   | relevance matrices, while they are filled and afterwards                    |
| `quantizers`   | what reads a version's components back from codes                           |
| `codes`        | the codes of items                                                          |
| `described`    | the description of a version: its files, and what they hold                 |
| `manifest`     | what a version consists of; detects damage                                  |
| `parts`        | the parts of a version during encoding: none twice, none lost               |
| `indexes`      | the indexes of a version                                                    |
| `attributes`   | columns of items that filters may name                                      |
| `filtering`    | which items a filter passes, by these columns                               |
| `hidden`       | rows of parts that were deleted or replaced                                 |
| `deltas`       | how much of a version lies beside its base                                  |
| `balance`      | a sum over the ids of a version, that tells whether one is lost             |
| `watermarks`   | the files of its data that a version has read                               |
| `live_ids`     | where a version has some ids, by reading ids alone                          |
| `versions`     | publish, list, verify, roll back: which versions exist, which is current    |
| `comparing`    | items that two versions have in common, or not                              |
| `usage`        | bytes of versions, and of what several of them name                         |
| `tags`         | names that keep a version                                                   |
| `leases`       | which versions servers read                                                 |
| `intents`      | changes that are under way, which no collection disturbs                    |
| `expiring`     | files of both, that count until a time                                      |
| `garbage`      | which versions may go, and which files nothing needs then                   |
| `collecting`   | deletes them                                                                |
"""
