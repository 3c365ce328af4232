"""Collectives: the only place that names `torch.distributed`.

| member  | what it does                                         |
|---------|------------------------------------------------------|
| `mean`  | the differentiable mean of a tensor over all workers |
| `first` | what the first worker decided, told to all           |
"""
