"""Modules: what is learnt, stage ENCODE of the pipeline. Torch in, torch out.

| member         | what it is                                                      |
|----------------|-----------------------------------------------------------------|
| `encoders`     | a query or an item -> the tensors that a similarity compares    |
| `similarities` | states of queries and of items -> scores                        |
| `losses`       | scores -> one number to minimise                                |
| `quantizers`   | vectors -> codes of a few small integers, and back              |
| `model`        | the contract of what a run leaves behind and a version serves   |
"""
