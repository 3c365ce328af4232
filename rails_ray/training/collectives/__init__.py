"""Collectives: the only place that names `torch.distributed`.

| member      | what it does                                                                                    |
|-------------|-------------------------------------------------------------------------------------------------|
| `group`     | who takes part, and what must hold of the tensors that they exchange                            |
| `mean`      | the differentiable mean of a tensor over all workers                                            |
| `first`     | a decision of the first worker, sent to all                                                     |
| `each`      | a number of each worker, sent to all                                                            |
| `gather`    | MoPQ, Section 3.2: everyone's embeddings on every worker, with their gradient, or without (NCS) |
| `dcs`       | MoPQ, Algorithm 1: the same gradient by primary and image losses                                |
| `processes` | a group of processes on this machine                                                            |
| `ring`      | the same again, of more items than fit: blocks travel round the workers                         |
"""
