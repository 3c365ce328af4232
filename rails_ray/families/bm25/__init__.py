"""BM25: the words that a query and an item share, a baseline without training.

| member   | what it is                                      |
|----------|-------------------------------------------------|
| `config` | its fields                                      |
| `model`  | its weights, and what encodes queries and items |
| `serve`  | its items and its searches                      |
| `train`  | its training                                    |
"""
