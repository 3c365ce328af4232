"""Items that are stored as vectors or as their codes: of dual encoders, and of RBE.

| member            | what it is                                                              |
|-------------------|-------------------------------------------------------------------------|
| `storing`         | the config of how items are stored                                      |
| `items`           | what such items become, and how they are searched                       |
| `quantized`       | items stored as codes                                                   |
| `trained_codes`   | codebooks that a run has trained, read back                             |
| `quantizer_piece` | MoPQ: the training of codes after that of the towers                    |
| `over_frozen`     | stands in for a model whose states are there already                    |
| `surrogates`      | vectors that stand for a mixture's scores, fitted when encoding begins  |
| `surrogate_file`  | what fitted them, as a version stores it                                |
"""
