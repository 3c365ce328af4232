"""Serving over HTTP: routers, and a deployment per shard unless routers hold them, around `rails_ray.serving` and
`rails_ray.serving.http`.

| member         | what it does                                                                       |
|----------------|------------------------------------------------------------------------------------|
| `shard`        | one shard of a version, as a mailbox                                               |
| `ranker`       | the heavy ranker's deployment, and how a router asks it                            |
| `items`        | the deployment that changes items, and how a router asks it                        |
| `transport`    | between router and shards: one codec, directly or by Serve's handle                |
| `router`       | HTTP in, ask all shards, HTTP out                                                  |
| `in_router`    | all shards in a router's own process                                               |
| `listening`    | what is bounded in each process that listens                                       |
| `plan`         | arguments, replicas, reservations, and the config of `serve deploy`                |
| `starting`     | how long to wait for an application that starts                                    |
| `app`          | the whole application: build it, run it                                            |
"""
