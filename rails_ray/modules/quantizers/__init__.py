"""Quantizers: what gives an item its code, a few small integers that stand for it when it is scored.

| member         | an item's code                                                     | paper                |
| -------------- | ------------------------------------------------------------------ | -------------------- |
| `random_codes` | K buckets, one in each chunk, drawn at random and never learned    | SOLAR                |
| `product`      | M codewords, one for each part of its vector, chosen by one of:    |                      |
| - `pq`         | codebooks by k-means                                               | Jegou et al., 2011   |
| - `opq`        | a rotation first                                                   | Ge et al., 2013      |
| - `dqn`        | trained: near the vectors                                          | Cao et al., 2016     |
| - `dvsq`       | trained: near in the inner products that queries ask for           | Cao et al., 2017     |
| - `spq`        | trained: soft codewords are matched, and drawn to hard ones        | Klein and Wolf, 2019 |
| - `dpq`        | trained: keys choose, values are read back                         | Chen et al., 2020    |
| - `mopq`       | trained: what codes stand for is matched                           | MoPQ, 2021           |
| - `distill_vq` | trained: codes rank items as vectors do                            | Xiao et al., 2022    |
| - `jpq`        | trained: codes stay, codewords move                                | Zhan et al., 2021    |

The configs of the trained ones are `learned.Method`s. `read_back` decodes items for a search, `in_faiss` converts to
FAISS's indexes and back. `item_codes` holds the codes of known items by their ids.
"""
