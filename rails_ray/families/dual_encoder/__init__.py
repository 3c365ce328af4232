"""Dual encoders of RAILS, pEBR and MoPQ: two towers, and a similarity that compares their components.

| member      | what it is                                      |
|-------------|-------------------------------------------------|
| `config`    | its fields                                      |
| `negatives` | what a query is trained against                 |
| `model`     | its weights, and what encodes queries and items |
| `serve`     | its items and its searches                      |
| `train`     | its pieces, samplers and training steps         |
"""
