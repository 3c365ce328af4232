"""Answering requests about a version, without Ray and without HTTP: what a server does between the two, and what
`rails_ray.serving.local` does in the caller's own process.

| member                | what it does                                                             |
|-----------------------|--------------------------------------------------------------------------|
| `validation_messages` | what is wrong with a request, in one sentence                            |
| `vector_queries`      | queries that are vectors, in one array                                   |
| `encoder`             | queries -> query state                                                   |
| `cutoffs`             | which cut-off a request gets                                             |
| `search_defaults`     | by which method a request is searched                                    |
| `measuring`           | recall and time of a version's searches                                  |
| `churn`               | how far two versions answer the same queries otherwise                   |
| `popular`             | the answer to queries of which the model knows nothing                   |
| `segments`            | the items of a shard: its base, and what came later                      |
| `scope`               | which items of a shard a search may find                                 |
| `kept_masks`          | the masks of filters, and the rows that they leave                       |
| `shard_messages`      | what routers and shards exchange                                         |
| `shard_search`        | query state -> the best items of one shard                               |
| `held_shards`         | all shards of a version in one process, searched at the same time        |
| `held_versions`       | one shard in the versions that are wanted of it                          |
| `answers`             | coverage, and the merged answer                                          |
| `grouping`            | so many items of each value of an attribute                              |
| `paging`              | a list that goes on where another ended                                  |
| `budgets`             | what is asked of a heavy ranker, and what becomes of a budget            |
| `deadlines`           | when its answer is of no more use                                        |
| `engine`              | a request -> what is asked of the shards, round by round -> the response |
| `stages`              | how long each part of that takes                                         |
| `batching`            | requests that arrive at the same time become one                         |
| `short_work`          | whether short work is done where it is, or in a thread                   |
| `instruments`         | the contracts of what collects metrics                                   |
| `metrics`             | what is counted of the answers                                           |
| `shadow`              | the recall of live searches                                              |
| `feedback`            | the coverage of live searches, by what clients report                    |
| `drift`               | how far live queries are from those that calibrated                      |
| `running_means`       | a mean over live queries, with its interval                              |
| `traffic`             | all of these, for any server                                             |
| `golden`              | the example query that a version answers before it takes over            |
| `missing_files`       | files of a version that are read beside a former one                     |
| `request_limits`      | how much a request may ask for                                           |
| `room`                | room in memory for a further version                                     |
| `gpu_room`            | room on a GPU for a version, by its manifest                             |
| `gpu_faults`          | what CUDA says of a GPU that fails, as our errors                        |
| `following`           | another version takes over while a server runs                           |
| `item_changes`        | items that clients add and delete                                        |
| `loaded`              | a version in the memory of one process                                   |
| `local`               | a version in the caller's own process                                    |
| `client`              | a client of the HTTP API                                                 |
| `heap`                | gives back the memory of a large answer                                  |
| `http`                | routes, access and answers over HTTP, and a server in one process        |
"""
