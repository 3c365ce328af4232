"""Serving over HTTP: a router, and one deployment per shard of the corpus, around `rails_ray.answering`.

| member         | what it does                                                                       |
|----------------|------------------------------------------------------------------------------------|
| `refusals`     | reading a body; status and message of each refusal                                 |
| `keys`         | a file of API keys, and who gets in with them                                      |
| `access`       | limits: keys, size and pace of a body, requests at once                            |
| `slow_headers` | a time limit for headers                                                           |
| `shard`        | one shard of a version, as a mailbox                                               |
| `ranker`       | the heavy ranker's deployment, and how a router asks it                            |
| `asking`       | ask all shards of one version at once; retry if a replica is lost                  |
| `router`       | HTTP in, ask all shards, HTTP out                                                  |
| `streaming`    | an answer as JSON, in one piece or in many                                         |
| `heap`         | gives back the memory of a large answer                                            |
| `plan`         | arguments, replicas, reservations, and the config of `serve deploy`                |
| `app`          | the whole application: build it, run it                                            |
"""
