"""The road between router and shards. Every question and every answer is one message of `codec`, whichever way it goes.

    router  --frame: ms left, message-->      a replica: message      directly, where Serve has said where it listens
    router  --handle.call(method, message)->  a replica: message      by Serve's handle, where that fails

| module       | what it is                                                                      |
|--------------|---------------------------------------------------------------------------------|
| `codec`      | messages: a version and arguments, or a version and an answer                   |
| `frames`     | many messages at once on one connection                                         |
| `listener`   | a replica's own server                                                          |
| `link`       | a router's connection to a replica                                              |
| `replicas`   | the replicas of a shard, as a router asks them directly                         |
| `shards`     | all shards at once, directly or by handle, and the heavy ranker                 |
"""
