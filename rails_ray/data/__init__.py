"""Data: what is searched, what asks, and which answers which.

| member      | what it is                                                                          |
|-------------|-------------------------------------------------------------------------------------|
| `dataset`   | what a run reads of any data set: its items, its queries by split, and titles       |
| `queries`   | the queries of a split and the items that answer them, in arrays                    |
| `sources`   | where the tables of a data set are                                                  |
| `unused`    | sentences on columns that nothing reads, and how to store those of items            |
| `corpus`    | the items that are to be encoded, and what answers need beside them                 |
| `vectors`   | columns of vectors, checked and mapped into memory                                  |
| `forms`     | ways to ask: text, vector, features, history; their tables and requests' fields     |
| `vector_files` | vectors in other tools' files: read, written, made a data folder                |
| `relevance` | what data sets of queries share: splits, and which items answer a query             |
| `scored`    | texts with what a heavy ranker says of items for each                               |
| `packaged`  | what a data set is that comes with the package                                      |
| `emoji`     | a text data set without any file: emoji and their names in 14 languages             |
| `batch`     | training batches, drawn from the step's number alone; uniform negatives             |
| `in_batch`  | batches whose queries have each other's positives for negatives                     |
| `buckets`   | SOLAR's batches: queries, and the buckets of the items that answer them             |
| `epochs`    | everything once in an epoch, in an order of its own: what most samplers draw by     |
"""
