"""Training without Ray: what a step computes, the loop around it, and what a run leaves behind.

| member       | what it does                                                            |
|--------------|-------------------------------------------------------------------------|
| `step`       | encode, score, loss: one number from one batch                          |
| `contrast`   | which items a query is compared with, on one worker or over all of them |
| `objectives` | the losses, with what they have to learn beside them                    |
| `terms`      | what is added to the loss of a batch: L_MI, GLaS                        |
| `buckets`    | the step of a chunk of SOLAR, and its bucket recall                     |
| `relevances` | the step of relevance-based embeddings, and the best items they find    |
| `rankers`    | heavy rankers: cross-encoders, boosted trees                            |
| `piece`      | one training on its own, and the way through it                         |
| `ranker_features` | the table that boosted trees are trained on                        |
| `loop`       | batches -> gradients -> weights, reporting by a callable                |

`evaluation` measures what was trained; `collectives` is all that knows of other processes.
"""
