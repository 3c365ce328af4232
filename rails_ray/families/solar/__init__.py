"""SOLAR: sparse random codes of items, learnt for queries in chunks that never communicate.

| member   | what it is                                      |
|----------|-------------------------------------------------|
| `config` | its fields                                      |
| `model`  | its weights, and what encodes queries and items |
| `serve`  | its items and its searches                      |
| `train`  | its training                                    |
"""
