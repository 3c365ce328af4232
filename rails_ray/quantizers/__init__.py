"""Quantizers: what gives an item its code, a few small integers that stand for it when it is scored.

| member         | an item's code                                                            | paper |
|----------------|---------------------------------------------------------------------------|-------|
| `random_codes` | K buckets, one in each chunk, drawn at random and never learned           | SOLAR |

`item_codes` holds the codes of known items by their ids, whoever chose them.
"""
