"""Kernels: tensors in, tensors out, for inference alone; each beside the plain version that it must equal.

| member        | what it is                                                                             |
|---------------|----------------------------------------------------------------------------------------|
| `mol_scan`    | RAILS, Section 3: scores of a Mixture of Logits over cached item-side state            |
| `lookup_scan` | SOLAR, Section 4, and product quantization: sums of table look-ups                     |
| `postings`    | SOLAR, Section 4: the items of each bucket, the best buckets, sums over what is posted |

`compiled` says where the loops of the last two run, `compiled_loops` has them.
"""
