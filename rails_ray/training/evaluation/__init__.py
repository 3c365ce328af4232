"""Evaluation: how good the answers are, against labels and against brute force.

| member      | what it measures                                                              |
|-------------|-------------------------------------------------------------------------------|
| `ranking`   | every query's answer in full: the rank of its best relevant item, its best list |
| `metrics`   | hit rate, mean reciprocal rank, precision and recall at k or of a cut list    |
| `agreement` | recall of a method against brute force                                        |
| `bootstrap` | a difference of two models on the same queries, and whether it is noise       |
| `seen`      | relevant items in the history of their own query, which an answer may exclude |
| `report`    | all of these for one model on one split                                       |
"""
