"""Search: the best items of each query, stages CANDIDATES and SCORE of the pipeline. Torch in, torch out.

| member         | what it is                                                                         |
|----------------|------------------------------------------------------------------------------------|
| `spec`         | what is asked of a search, and what it gives, for one batch                        |
| `masks`        | which items an answer may not hold                                                 |
| `indexes`      | candidates by inner product, or by a sum of look-ups                               |
| `methods`      | how a corpus is searched: exact, or by candidates that are scored again            |
| `searcher`     | a similarity and loaded items, with their methods by name                          |
| `selected`     | some items, as if there were no others                                             |
| `gathering`    | when these are gathered, and when the others are hidden                            |
| `rounds`       | what a query asks of its shards, one round after the other                         |
| `candidates`   | the union of the lists of first stages                                             |
| `rescore`      | exact scores of candidates                                                         |
| `certificates` | what an answer proves                                                              |
| `sharded`      | one corpus in several parts                                                        |
| `segmented`    | one shard in several parts: its base, and what came later                          |
| `scan`         | the best of blocks of scores                                                       |
| `gpu_scan`     | the same on a GPU, without a look at the scores                                    |
| `started`      | searches that have started on a GPU, and that the host looks at together           |
| `checks`       | what every method refuses                                                          |
| `ladders`      | the search parameters that are tried of each method                                |
| `measured`     | recall against brute force, and the choice among searches                          |
"""
