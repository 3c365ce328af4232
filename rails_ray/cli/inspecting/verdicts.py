"""Which recipes fit a data set, with the number that decides.

A recipe does not fit where training would refuse the data, or where a rule below is broken. The rules are those that
measurements of ours or a contract gives; where there is neither, a recipe fits, and the verdict promises nothing.

Codes (SOLAR) learn an item by the queries that name it, bucket by bucket. docs/log/codes.md, 2026-11-21, has two
measurements: TLDR, where they put the right item first more often than a dual encoder (.361 to .344), and WordNet,
where they are far behind (.026 to .103). Both are measured here as `cli.inspecting.facts` does:

    |                                                  | TLDR | WordNet | least |
    | share of test pairs whose item training names    | .957 | .404    | .7    |
    | median number of training queries that name it   | 3    | 1       | 2     |

The least values lie about halfway between the two; nothing in between was measured.
"""

from dataclasses import dataclass

import numpy as np

from rails_ray.cli.inspecting import facts
from rails_ray.data.dataset import DataSet, Texts
from rails_ray.data.forms import NamedItems
from rails_ray.data.queries import ItemLists
from rails_ray.families.recipes import FOR_PACKAGED
from rails_ray.families.training_family import TrainingFamily, training_family

LEAST_NAMED = 0.7  # of the test pairs; the module says why
LEAST_QUERIES = 2  # training queries of the median item; the module says why
LARGE_CORPUS = 1_000_000  # codes are for millions of items (README.md); on TLDR, 7,424 items, nothing beats TF-IDF
MOST_CUT = 0.5  # share of items that may lose their end: our choice, not measured; beyond it most items are cut
SAID: dict[str | None, str] = {  # of similarities of components; README.md has the figures
    "mixture_of_logits": "a mixture promises nothing over a dot product (HR@10 4.2% higher on MovieLens-1M, NDCG@10 7% "
    "lower on TLDR)",
    "dot_product": "a vector database can serve what it makes",
}
NAMED = "only weights of your vectors are trained (NDCG@10 7.8% higher than by the best fixed ones on TLDR)"


@dataclass(frozen=True)
class Verdict:
    """
    why: a clause, with the number that decides.
    """

    fits: bool
    why: str


def verdict(own: TrainingFamily, read: DataSet, num_sampled: int) -> Verdict:
    """Return whether a recipe fits a data set.

    Args:
        num_sampled: texts whose lengths are counted, at most.
    """
    try:
        own.check_weights(read)
        own.check_can_be_found(read)
        own = training_family(own.completed(read))
    except ValueError as error:
        return Verdict(False, str(error))
    if not own.trains and not len(read.queries["test"]):
        return Verdict(True, "nothing is trained: `rails-ray encode --recipe` makes an index of items alone")
    if not own.trains:
        return Verdict(True, "nothing is trained: what it finds is the number to beat")
    if is_for_packaged(own):
        return Verdict(True, "sized for the data in the package: a recipe for data of your own is the better start")
    sizes = own.sizes
    if sizes.num_buckets is not None:
        return codes(read, sizes.num_buckets)
    if isinstance(own.form, NamedItems):
        return Verdict(True, NAMED)
    said = SAID.get(sizes.similarity, "nothing is known of it before it is trained")
    if sizes.max_length is None:
        return Verdict(True, said)
    inputs = read.queries["test"].inputs
    if isinstance(inputs, ItemLists):
        return histories(inputs, sizes.max_length, said)
    assert isinstance(read.item_inputs, Texts)
    return texts_of_tokens(read.item_inputs, sizes.max_length, num_sampled, said)


def is_for_packaged(own: TrainingFamily) -> bool:
    """Return whether a recipe is sized for the data set in the package."""
    return own.config.name in FOR_PACKAGED


def codes(read: DataSet, num_buckets: int) -> Verdict:
    """Return whether codes can be learnt: more items than buckets, and items that training queries name often."""
    num_items = len(read.item_ids)
    named = facts.of_relevance(read)["test_pairs_named_in_training_fraction"]
    queries = float(np.median(facts.training_queries_of_items(read)))
    if num_items <= num_buckets:
        return Verdict(False, f"codes need more items than their {num_buckets:,} buckets, got {num_items:,}")
    if named < LEAST_NAMED:
        return Verdict(
            False,
            f"codes need items that training queries name: {named:.1%} of the test pairs ask for one, and at least "
            f"{LEAST_NAMED:.0%} are needed (on WordNet, with 40%, codes are far behind a dual encoder)",
        )
    if queries < LEAST_QUERIES:
        return Verdict(
            False,
            f"codes need items that training queries name often: the median item answers {queries:g} of them, and at "
            f"least {LEAST_QUERIES} are needed (on WordNet, with 1, codes are far behind a dual encoder)",
        )
    reason = (
        f"the median item answers {queries:g} training queries, and {named:.1%} of the test pairs ask for a known one"
    )
    if num_items < LARGE_CORPUS:
        reason += f"; but codes are for millions of items, and {num_items:,} are few: see what the baseline reaches"
    return Verdict(True, reason)


def texts_of_tokens(items: Texts, max_length: int, num_sampled: int, similarity: str) -> Verdict:
    """Return whether a model that reads so many tokens reads most items to their end. A word is at least one token."""
    cut = float((facts.num_words(facts.sample_of(items, num_sampled)) > max_length).mean())
    reason = f"it reads {max_length} tokens, and {cut:.1%} of the items have more words than that"
    if cut > MOST_CUT:
        return Verdict(
            False, f"{reason}: set --encoder.max-length, or take a recipe of hashed n-grams, which reads all"
        )
    return Verdict(True, f"{reason}; {similarity}")


def histories(test: ItemLists, max_length: int, similarity: str) -> Verdict:
    """How much of the histories is read: a history may be of any length.

    Args:
        test: the test queries' histories.
    """
    longer = float((test.lengths > max_length).mean())
    reason = f"it reads the last {max_length} interactions, and {longer:.1%} of the test histories have more"
    return Verdict(True, f"{reason}; {similarity}")
