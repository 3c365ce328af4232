"""rails-ray: train, index and serve retrieval with learned similarities on Ray.

Everything here is one pipeline with interchangeable stages: encode -> candidates -> score -> cut.

Axes, the same letters in every signature and comment:

    B    queries in a batch                 d    width of a component
    X    items of the corpus (or a shard)   D    width of an embedding (a representation)
    C    candidates of one query            H    hidden width of a small network
    N    negatives                          k    results
    P_Q  query components                   P_X  item components;  P = P_Q * P_X
    R    buckets: of n-grams, of a chunk    E    excluded (query, item) pairs
    K    SOLAR's chunks                     M, L parts of a code, entries of a table for each
    S    RBE's supports                     Q    its support queries
"""

__version__ = "0.1.0"
