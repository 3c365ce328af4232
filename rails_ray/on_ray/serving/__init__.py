"""Serving over HTTP: a router, and one deployment per shard of the corpus.

| member         | what it does                                                                       |
|----------------|------------------------------------------------------------------------------------|
| `schemas`      | the JSON of requests and answers, and the sentence for a bad request               |
| `refusals`     | reading a body; status and message of each refusal                                 |
| `keys`         | a file of API keys, and who gets in with them                                      |
| `access`       | limits: keys, size and pace of a body, requests at once                            |
| `slow_headers` | a time limit for headers                                                           |
| `encoder`      | queries -> query state                                                             |
| `shard`        | query state -> the best items of one shard                                         |
| `asking`       | ask all shards of one version at once; retry if a replica is lost                  |
| `router`       | HTTP in, encode, ask all shards, merge, cut, HTTP out                              |
| `cutoffs`      | which cut-off a request gets                                                       |
| `answers`      | coverage, and the merged answer                                                    |
| `streaming`    | an answer as JSON, in one piece or in many                                         |
| `heap`         | gives back the memory of a large answer                                            |
| `plan`         | arguments, replicas, reservations, and the config of `serve deploy`                |
| `app`          | the whole application: build it, run it                                            |
"""
