"""RBE: an item by its scores against supports, for an expensive ranker within a budget of calls.

| member       | what it is                                                             |
|--------------|------------------------------------------------------------------------|
| `config`     | its fields                                                             |
| `model`      | its weights, and what encodes queries and items                        |
| `serve`      | its items and its searches                                             |
| `train`      | how supports are chosen, and the piece that learns from their scores   |
| `run_ranker` | a trained run as a heavy ranker                                        |
"""
