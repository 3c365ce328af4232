"""Training without Ray: what a step computes, the loop around it, and what a run leaves behind.

| member  | what it does                                                         |
|---------|----------------------------------------------------------------------|
| `step`  | encode, score, loss: one number from one batch                       |
| `loop`  | batches -> gradients -> weights, reporting by a callable             |
| `state` | weights and checkpoints as safetensors bytes                         |
"""
