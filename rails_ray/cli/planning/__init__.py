"""Needs of a corpus, before anything is built: memory, shards, replicas, latency, storage, time to load.

| module       | what it holds                                                          |
|--------------|------------------------------------------------------------------------|
| `quantities` | numbers as people write them: 100M                                     |
| `shapes`     | bytes of an item, arithmetic of a pair of query and item               |
| `searches`   | what a search of X items computes, reads and selects                   |
| `machines`   | GPUs by their public peaks, two CPU cores by measured rows: seconds    |
| `measured`   | the rows of this repository's benches that the planner builds on       |
| `plans`      | shards, replicas and times that meet a demand                          |
| `advice`     | the same in sentences and commands                                     |

Bytes of an item, with b bytes a number (fp32 4, fp16 and bf16 2, int8 1), as `ItemState.columns` names them:

    components = P_X d b        average = d b if P_X > 1        gate = 4 P if P > 1        state = their sum

Arithmetic of one pair of query and item; a pair with P = 1 has no gate:

    products   = 2 P d + 4 P H       the cosines, and both layers of w
    functions  = H + 2 P             SiLU of the hidden layer, SiLU and exp of each gate

A search of X items by B queries:

    brute_force      products and functions of B X pairs; reads X (components + gate); selects from B X scores
    per_embedding    2 P d B X; reads X components; selects from P B X scores; rescores C = P n candidates a query
    average, ann     2 d B X; reads X d b; selects from B X scores; rescores C = m candidates a query
    combined         both; C = P n + m
    rescoring        products and functions of B C pairs; gathers B C (components + gate)

n is `num_per_embedding`, m `num_candidates`, by default k of `ann`; C is at most X. `ann` is for a dot product, P = 1,
whose only component is its own average. Its index of float32 has the scores, so that what counts as rescoring is a
little too much. This is the first stage `flat`. In its place, with float32 copies of the vectors as FAISS
keeps them, and with I indexes (P_X per embedding, 1 by average):

    ivf     nlist = min(4 sqrt(X), min(X, 200,000) / 39) lists: k-means has a sample of 200,000 items, 39 a list.
            A query compares nlist centroids, then the X nprobe / nlist vectors of its nprobe = sqrt(nlist) lists
            bytes: I (X (4 d + 8) + 4 d nlist)
    hnsw    a query visits M / 2 ef_search vectors, ef_search at least as long as the list wanted; FAISS counts 10 to 17
            times ef_search with M = 32 and ef_search = 64
            bytes: I X (4 d + 8 M + 4 M / (M - 1) + 12): vector, links of level 0, of the levels above, and bookkeeping

Time of a search:

    GPU     0.7 ms + max(bytes / bandwidth, products / peak, functions / peak) / efficiency; a score adds 8 bytes,
            written once and read once. This is a roofline of the fused scan, which keeps cosines out of memory, and
            what an H100 reaches of it.
    H100    where the exact scan of a mixture of that shape was measured there, in fp32 and with k at most 100:
            0.7 ms + items * what an item took, on the line through the rows of 1 and of 32 queries
    CPU     sum over kinds of work of amount * seconds per unit, for two cores. Seven measured rows give seven units.

Pruning, which may skip gates, is not counted. Nor are lists that must be widened to hold k distinct items.

Memory, and what follows, for N shards of x = ceil(X / N) items and R replicas of each:

    GPU          x state + index + 4 B x (the scores of brute_force)              at most 80% of its memory
    CPU          x (state + id + title + 16) + index                              at most 80% of its memory
    host         as on a CPU, without the index: beside a GPU, too, the state stays in the host's memory
    stored       X (id + title + state): Parquet without compression, which gains little on vectors
    load time    x (id + title + state) / storage bandwidth
    latency      around + search, where around is what a request takes besides its search, as measured over HTTP
    N            the fewest that fit and keep the latency
    R            qps * search / (B utilisation) rounded up, and at least `availability`
    routers      qps / (B * requests a second of a router * utilisation) rounded up, and at least `availability`

Utilisation is one half at most: a replica is free for at least every other request. A request to several shards waits
if one of them is busy; such waits are not counted.

Axes: B queries, X items, P_Q / P_X components, P = P_Q * P_X, d width of a component, H hidden width, k results.
"""
