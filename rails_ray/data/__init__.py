"""Data: what is searched, what asks, and which answers which.

| member      | what it is                                                                          |
|-------------|-------------------------------------------------------------------------------------|
| `dataset`   | what a run reads of any data set: corpus, queries by split                          |
| `text`      | the contract of a text data set: three Parquet tables, read and checked             |
| `features`  | the same of queries that are numbers: sparse features, or vectors                   |
| `relevance` | what these two share: splits, and which items answer a query                        |
| `sequences` | the contract of histories: interactions, items, users; leave-one-out                |
| `emoji`     | a text data set without any file: emoji and their names in 14 languages             |
| `batch`     | training batches, drawn from the step's number alone; uniform negatives             |
| `in_batch`  | batches whose queries have each other's positives for negatives                     |
| `buckets`   | SOLAR's batches: queries, and the buckets of the items that answer them             |
| `epochs`    | everything once in an epoch, in an order of its own: what most samplers draw by     |
"""
