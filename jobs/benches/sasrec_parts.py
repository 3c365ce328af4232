"""How much does each part of the public SASRec contribute on sparse histories, where our recipe finds less?

One block over the items of Beauty, Toys or Sports, in plain torch, so that its parts can be changed one by one:

    block       theirs: attention reads x with LayerNorm(x) as queries, and what it finds is added to LayerNorm(x)
                ours: both read LayerNorm(x), and what they find is added to x; items are scaled by sqrt(D)
    sinks       as many keys and values as a history is shorter than T, each the biases alone: what attention over
                padding at the beginning comes to, if padding is set to zero and not hidden
    scores      inner products, or cosines under a temperature
    width       D

Positions count from the newest item; numbers of items are dropped where histories read them and where they are
compared; negatives are uniform and shared by a batch; training reads neither validation nor test items.

    python -m jobs.benches.sasrec_parts [--width 256] [--block ours] [--no-has-sinks] [--scores cosines] [--epochs 40]

A row for each validation: HR@10 and NDCG@10 of validation and test items, all ranked but those of the history. A yes is
a change of one part that moves HR@10 by more than another seed does.

Axes: B histories, L positions, D width, X items, N positions of all histories of a batch, M negatives.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
import tyro
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor, nn

from jobs.benches.record import Record
from rails_ray.data.forms.history import HistoryForm
from rails_ray.data.queries import Queries, Visits
from rails_ray.data.sources import Sources

HIDDEN = -1e9  # logit of what must not be seen
GROUP, ASKED = 16, 256  # histories of similar length that are encoded together: in training, and in validation
K = 10


@dataclass(frozen=True, kw_only=True)
class Options:
    """
    Args:
        data: folder with the data sets.
        length: T, most items of a history.
        dropout: of inputs, attention and layers; and of the items' numbers, `item_dropout`.
        dropped: an item's numbers are dropped anew at each place, or once a step, alike wherever the item is.
        deviation: standard deviation of the first embeddings; 0 for Xavier's, of all matrices.
        temperature: of cosines.
        negative_share: share of the batch's negatives that each position is compared with, drawn for each.
        every: epochs between two validations.
    """

    data: Path = Path("../shared/data")
    set: str = "amazon-beauty"
    width: int = 64
    length: int = 50
    block: Literal["theirs", "ours"] = "theirs"
    has_sinks: bool = True
    scores: Literal["products", "cosines"] = "products"
    temperature: float = 0.1
    deviation: float = 0.0
    dropout: float = 0.2
    item_dropout: float = 0.2
    dropped: Literal["at each place", "once a step"] = "at each place"
    num_negatives: int = 2048
    negative_share: float = 1.0
    batch_size: int = 128
    learning_rate: float = 1e-3
    epochs: int = 100
    every: int = 4
    seed: int = 0


class Parts(nn.Module):
    """SASRec of one block and one head."""

    def __init__(self, options: Options, num_items: int) -> None:
        super().__init__()
        self.options, width = options, options.width
        self.embeddings, self.positions = nn.Embedding(num_items, width), nn.Embedding(options.length, width)
        self.queries, self.keys, self.values, self.mixed, self.first, self.second = (
            nn.Linear(width, width) for _ in range(6)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        for parameter in self.parameters():
            if parameter.dim() > 1 and not options.deviation:
                nn.init.xavier_normal_(parameter)
        if options.deviation:
            for table in (self.embeddings, self.positions):
                nn.init.normal_(table.weight, std=options.deviation)
        self.of_step: Tensor | None = None

    def begin_step(self) -> None:
        """Drop numbers of the items, where that is done once a step."""
        is_dropped = self.training and self.options.dropped == "once a step"
        self.of_step = F.dropout(self.embeddings.weight, self.options.item_dropout) if is_dropped else None

    def _taken(self, rows: Int[Tensor, "..."] | None) -> Tensor:
        """Items, with some of their numbers dropped."""
        items = self.embeddings.weight if self.of_step is None else self.of_step
        found = items if rows is None else F.embedding(rows, items)
        return F.dropout(found, self.options.item_dropout, self.training and self.of_step is None)

    def compared(self, rows: Int[Tensor, " M"] | None = None) -> Float[Tensor, "M D"]:
        """Items as scores read them."""
        found = self._taken(rows)
        return F.normalize(found, dim=-1) if self.options.scores == "cosines" else found

    def forward(self, rows: Int[Tensor, "B L"], lengths: Int[Tensor, " B"]) -> Float[Tensor, "B L D"]:
        """The query vector after each item; histories are padded at the end."""
        options, place = self.options, torch.arange(rows.shape[1])
        is_item = place < lengths[:, None]
        embedded = self._taken(rows)
        if options.block == "ours":
            embedded = embedded * math.sqrt(options.width)
        positions = self.positions((lengths[:, None] - 1 - place).clamp(min=0))
        inputs = self._dropped(embedded + positions) * is_item[..., None]
        normed = self.norms[0](inputs)
        is_theirs = options.block == "theirs"
        found = self._attended(normed, inputs if is_theirs else normed, lengths)
        middle = normed + found if is_theirs else inputs + self._dropped(found)
        again = self.norms[1](middle)
        layered = self._dropped(self.second(self._dropped(F.relu(self.first(again)))))
        said: Tensor = self.norms[2]((again if is_theirs else middle) + layered)
        return F.normalize(said, dim=-1) / options.temperature if options.scores == "cosines" else said

    def _attended(self, asking: Tensor, read: Tensor, lengths: Int[Tensor, " B"]) -> Float[Tensor, "B L D"]:
        place, root = torch.arange(asking.shape[1]), math.sqrt(self.options.width)
        queries, keys, values = self.queries(asking), self.keys(read), self.values(read)
        logits = (queries @ keys.transpose(1, 2) / root).masked_fill(place > place[:, None], HIDDEN)
        if not self.options.has_sinks:
            alone: Tensor = self.mixed(self._dropped(logits.softmax(dim=2)) @ values)
            return alone
        number = (self.options.length - lengths).clamp(min=0).float().clamp(min=1e-9)
        sunk = queries @ self.keys.bias / root + number.log()[:, None]
        weights = self._dropped(torch.cat([logits, sunk[..., None]], dim=2).softmax(dim=2))
        found: Tensor = self.mixed(weights[..., :-1] @ values + weights[..., -1:] * self.values.bias)
        return found

    def _dropped(self, values: Tensor) -> Tensor:
        return F.dropout(values, self.options.dropout, self.training)


def main(options: Options) -> None:
    torch.manual_seed(options.seed)
    record, console = Record("sasrec_parts"), Console()
    read = HistoryForm().read(Sources(str(options.data / options.set)))
    model, generator = Parts(options, len(read.item_ids)), np.random.default_rng(options.seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=options.learning_rate, betas=(0.9, 0.98), fused=True)
    settings = {name: value for name, value in asdict(options).items() if name != "data"}
    histories, began = trained_on(read.queries["train"], options.length), time.process_time()
    for epoch in range(1, options.epochs + 1):
        model.train()
        losses = list[float]()
        for members in np.array_split(generator.permutation(len(histories)), len(histories) // options.batch_size):
            negatives = torch.from_numpy(generator.integers(0, len(read.item_ids), options.num_negatives))
            loss = loss_of(model, [histories[member] for member in members], negatives)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        if epoch % options.every == 0:
            found = {split: measured(model, read.queries[split]) for split in ("valid", "test")}
            facts = {"epoch": epoch, "loss": float(np.mean(losses)), "cpu_s": round(time.process_time() - began)}
            record.row(**settings, **facts, **found)
            console.print(facts, found)


def trained_on(queries: Queries, length: int) -> list[NDArray[np.int64]]:
    """The newest items of each history and its answer, of which all but the first are answers."""
    assert isinstance(queries.inputs, Visits)
    pairs = zip(queries.inputs, queries.relevant, strict=True)
    return [np.append(history, answer)[-length - 1 :] for history, answer in pairs if len(history)]


def loss_of(model: Parts, histories: list[NDArray[np.int64]], negatives: Int[Tensor, " M"]) -> Tensor:
    """Mean loss of the batch's positions: a softmax over the next item and the negatives."""
    model.begin_step()
    said, answers = list[Tensor](), list[Tensor]()
    for members, rows, lengths in in_groups([history[:-1] for history in histories], GROUP):
        is_item: Bool[Tensor, "B L"] = torch.arange(rows.shape[1]) < lengths[:, None]
        said.append(model(rows, lengths)[is_item])
        answers += [torch.from_numpy(histories[member][1:]) for member in members]
    query, answer = torch.cat(said), torch.cat(answers)
    own = (query * model.compared(answer)).sum(dim=1, keepdim=True)
    others = query @ model.compared(negatives).T
    others = others.masked_fill(negatives == answer[:, None], HIDDEN)
    if (share := model.options.negative_share) < 1:
        others = others.masked_fill(torch.rand_like(others) >= share, HIDDEN)
    return F.cross_entropy(torch.cat([own, others], dim=1), torch.zeros(len(query), dtype=torch.int64))


def in_groups(
    histories: list[NDArray[np.int64]], size: int
) -> Iterator[tuple[NDArray[np.int64], Int[Tensor, "B L"], Int[Tensor, " B"]]]:
    """Numbers of histories of similar length, these, padded at their end, and their lengths."""
    order = np.argsort([len(history) for history in histories], kind="stable")
    for first in range(0, len(order), size):
        members = order[first : first + size]
        lengths = np.array([len(histories[member]) for member in members])
        rows = np.zeros((len(members), lengths[-1]), np.int64)
        for line, member in enumerate(members):
            rows[line, : lengths[line]] = histories[member]
        yield members, torch.from_numpy(rows), torch.from_numpy(lengths)


@torch.no_grad()
def measured(model: Parts, queries: Queries) -> list[float]:
    """HR@10 and NDCG@10."""
    assert isinstance(queries.inputs, Visits)
    model.eval()
    model.begin_step()
    histories, answers = list(queries.inputs), queries.relevant.rows
    items, gains = model.compared(), np.zeros(len(histories))
    for members, rows, lengths in in_groups([history[-model.options.length :] for history in histories], ASKED):
        scores = model(rows, lengths)[torch.arange(len(members)), lengths - 1] @ items.T
        for line, member in enumerate(members):
            scores[line, torch.from_numpy(histories[member])] = HIDDEN
        own = scores.gather(1, torch.from_numpy(answers[members])[:, None])
        ranks = 1 + (scores > own).sum(dim=1).numpy()
        gains[members] = np.where(ranks <= K, 1 / np.log2(1 + ranks), 0)
    return [round(float((gains > 0).mean()), 4), round(float(gains.mean()), 4)]


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
