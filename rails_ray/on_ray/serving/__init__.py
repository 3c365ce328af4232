"""Serving over HTTP: a router, and one deployment per shard of the corpus.

| member         | what it does                                                                       |
|----------------|------------------------------------------------------------------------------------|
| `schemas`      | the JSON of requests and answers, and the sentence for a bad request               |
| `refusals`     | how a body is read; status and sentence of what cannot be answered                 |
| `keys`         | a file of API keys, and who gets in by it                                          |
| `access`       | who may ask and how much at once: keys, size and pace of a body, requests at once  |
| `slow_headers` | how long headers may take                                                          |
| `encoder`      | queries -> query state                                                             |
| `shard`        | query state -> the best items of one shard                                         |
| `asking`       | all shards at once, of one version, and elsewhere where a replica is lost          |
| `router`       | HTTP in, encode, ask all shards, merge, cut, HTTP out                              |
| `cutoffs`      | which cut-off a request gets                                                       |
| `answers`      | what the router decides: coverage, the merged answer                               |
| `streaming`    | an answer as JSON, in one piece or in many                                         |
| `heap`         | what a large answer took is given back                                             |
| `plan`         | arguments, replicas, reservations, and the config of `serve deploy`                |
| `app`          | the whole application: build it, run it                                            |
"""
