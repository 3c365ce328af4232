"""Softmax of the training logit over the whole corpus: what it says of the relevant items, batch by batch.

    log p(x | q) = logit_qx / f - log sum_y exp(logit_qy / f)

Each class here watches `rank_all`, so that the corpus is scored once for all of them.

Axes: B queries of a batch, X items, M relevant pairs, Q queries with a relevant item, F factors.
"""

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from rails_ray.cutoffs.calibration import Positives
from rails_ray.cutoffs.temperatures import FACTORS, means
from rails_ray.modules.losses import ScoreLogit
from rails_ray.training.evaluation.ranking import AllScores

BLOCK_SCORES = 2**24  # of relevant pairs times items that are compared at a time: 64 MB


class LogLikelihoods:
    """The log-probabilities of relevant items at each of FACTORS."""

    def __init__(self, logit: ScoreLogit) -> None:
        self.logit = logit
        self._query: list[Tensor] = []
        self._found: list[Tensor] = []

    def __call__(self, batch: AllScores) -> None:
        logits = _logits(self.logit, batch)
        of_pairs = logits[batch.line, batch.row].double()
        found = [
            of_pairs / factor - (logits / factor).logsumexp(dim=1).double()[batch.line] for factor in FACTORS.tolist()
        ]
        self._query.append(batch.first + batch.line)
        self._found.append(torch.stack(found, dim=1))

    def values(self) -> NDArray[np.float64]:
        """The mean over each query's relevant items [Q, F]."""
        query, found = (torch.cat(own).cpu().numpy() for own in (self._query, self._found))
        return np.stack([means(query, column) for column in found.T], axis=1)


class MassAbove:
    """How much of the softmax lies above each relevant item: less than c, if a nucleus c keeps the item.

    log_normaliser: of each query [Q], those without a relevant item included.
    """

    def __init__(self, logit: ScoreLogit) -> None:
        self.logit = logit
        self._query: list[Tensor] = []
        self._above: list[Tensor] = []
        self._log_normaliser: list[Tensor] = []

    def __call__(self, batch: AllScores) -> None:
        logits = _logits(self.logit, batch)
        probability = logits.softmax(dim=1).nan_to_num()  # [B, X]; nothing is above what cannot be found
        size = max(BLOCK_SCORES // max(logits.shape[1], 1), 1)
        for line, row in zip(batch.line.split(size), batch.row.split(size), strict=True):
            is_above = batch.scores[line] > batch.scores[line, row][:, None]
            self._above.append((probability[line] * is_above).sum(dim=1))
        self._query.append(batch.first + batch.line)
        self._log_normaliser.append(logits.double().logsumexp(dim=1))

    @property
    def log_normaliser(self) -> NDArray[np.float64]:
        return torch.cat(self._log_normaliser).cpu().numpy()

    def positives(self, temperature: NDArray[np.floating]) -> Positives:
        """The relevant items, by the share of the softmax that lies at or below each.

        Args:
            temperature: tau_q of all queries.
        """
        queries, number = np.unique(torch.cat(self._query).cpu().numpy(), return_inverse=True)
        above = torch.cat(self._above).double().cpu().numpy() if self._above else np.empty(0)
        return Positives(number, 1 - above, np.asarray(temperature[queries], dtype=np.float64))


def _logits(logit: ScoreLogit, batch: AllScores) -> Float[Tensor, "B X"]:
    """-inf where the query cannot find the item."""
    return logit(batch.scores, batch.temperature).masked_fill(batch.scores.isneginf(), -torch.inf)
