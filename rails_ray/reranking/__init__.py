"""Reranking: an expensive ranker's own scores, a few of them for each query, lead to its best items.

| member      | what it is                                                             | paper                    |
|-------------|------------------------------------------------------------------------|--------------------------|
| `supports`  | which items every query is scored against                              | RBE, Section 3.4         |
| `clusters`  | supports near the centres of clusters                                  | RBE, Section 3.4         |
| `l2_greedy` | supports from which all items are rebuilt with the least squared error | RBE, Appendix B          |
| `anncur`    | an item as a fixed combination of the supports                         | RBE, Equation 1          |
| `embedding` | AnnCUR plus a trained prediction of its error                          | RBE, Appendix C          |
| `surrogate` | vectors whose inner products stand for any similarity's scores         | none; LEMUR              |
| `axn`       | a query's scores, fitted again each time more of them are known        | Yadav et al., 2024       |

`budget` says how a query spends its calls, `rounding` what counts as equal,
`scored` what queries with scores are; `rankers` has heavy rankers.

A relevance matrix has a row for each item and a column for each query, R[i, q] = R(i, q). Higher is better.
"""
