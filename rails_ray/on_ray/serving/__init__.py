"""Serving over HTTP: a router, and one deployment per shard of the corpus.

| member    | what it does                                                          |
|-----------|-----------------------------------------------------------------------|
| `schemas` | the JSON of requests and answers, and the sentence for a bad request  |
| `encoder` | queries -> query state                                                |
| `shard`   | query state -> the best items of one shard                            |
| `router`  | HTTP in, encode, ask all shards, merge, cut, HTTP out                 |
| `answers` | what the router decides: cut-off, coverage, the merged answer         |
| `access`  | API keys and the size of a request                                    |
| `plan`    | arguments, replicas, reservations, and the config of `serve deploy`   |
| `app`     | the whole application: build it, run it                               |
"""
