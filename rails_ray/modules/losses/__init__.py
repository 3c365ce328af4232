"""Losses: tensors in, one number for each query out. A loss knows neither ranks nor configs nor models.

| member                  | paper                                                          |
|-------------------------|----------------------------------------------------------------|
| `sampled_softmax`       | RAILS, Equation 4 (first part)                                 |
| `exp_nce`               | pEBR, Section 2.4.1: the logit is (score - 1) / tau_q          |
| `beta_nce`              | pEBR, Section 2.4.2: the logit is log z / tau_q                |
| `pointwise`             | pEBR, Section 2.2.1: which level of score is enough            |
| `maximum_likelihood`    | pEBR, Section 2.3: a density of relevant scores, and of others |
| `mutual_information`    | RAILS, Equation 3: every pair of components used, few by each  |
| `bucket_cross_entropy`  | SOLAR, Section 3.2: which buckets hold an item that answers    |
| `glas`                  | SOLAR, Appendix D, Equation 2: items of other queries apart    |
| `top_share`             | RBE, Appendix C: how much of the softmax the best items have   |
| `distilled`             | RBE's embeddings: the ranker's own softmax is the one to match |
| `negatives`             | what each item of a batch is to each query                     |
| `streaming_log_sum_exp` | MoPQ, Section 3.2: the softmax of more items than fit          |
"""

from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor


@runtime_checkable
class ScoreLogit(Protocol):
    """Turns scores in [-1, 1] into the logits of a softmax over one positive and N negatives."""

    def __call__(self, scores: Float[Tensor, "B X"], temperature: Float[Tensor, " B"]) -> Float[Tensor, "B X"]:
        """Args:
        temperature: tau_q of each query.
        """
