"""Families: what a run trains and a version serves, one folder each with its config, its model and its contract.

| member         | paper                                                                     |
|----------------|---------------------------------------------------------------------------|
| `dual_encoder` | RAILS, pEBR, MoPQ: two towers, their components, and what compares them   |
| `solar`        | SOLAR: chunks of buckets, each trained alone; items have random codes     |
| `rbe`          | RBE: supports, one piece for their matrix, and items that join by calls   |
| `bm25`         | none: the words that a query and an item share, a baseline                |

What they share: `served_family` and `training_family` are the two contracts, `config` the tree of a run's configs,
`recipes` return such trees; `data` is what a run reads, `items` what its items become (an artefact that is made once,
then a map of each block), `vector_items` items stored as vectors or codes, `kept_texts` a frozen model that reads each
text once, `shards` the items of a version, `calibrations` its calibrated cut-offs, which `calibrating` measures on
`version_queries`, `default_searches` how it is searched by default, and `version` a version, opened. `running` begins
and ends a run, and `advising` compares its mixture with a dot product; `encoding` makes a version of it by tasks
(`encoding_work`, `indexing`), on a cluster or `in_process`. `changing` adds and deletes items of a version
(`read_items`, `json_items`, `added_items`, `given_items`), `refreshing` adds what is new of data that grow,
`compacting` writes a version anew, and `next_version` publishes what they make.

A folder has four modules: `config`, `model`, `serve` and `train`, whose FAMILY keeps one of the contracts. `registry`
finds them beside the config that a run has, so nothing else matches on what a run trains. What serves imports no
`train`, and a `config` or `model` imports neither: this file must stay empty.
"""
