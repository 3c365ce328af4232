"""Kernels: tensors in, tensors out; each beside the plain version that it must equal. Three have a gradient.

| member            | what it is                                                                             |
|-------------------|----------------------------------------------------------------------------------------|
| `mol_scan`        | RAILS, Section 3: scores of a Mixture of Logits over cached item-side state            |
| `fused_scan`      | the same scores on a GPU, in one kernel of 16 bits, and the best of them               |
| `mol_gradient`    | RAILS, Section 2: the same scores in training, and their gradient                      |
| `fused_gradient`  | both on a GPU, in one kernel of 16 bits, with dropout by `hashed_dropout`              |
| `product_softmax` | RAILS, Equation 4, over inner products: the loss and its gradient, no score kept       |
| `lookup_scan`     | SOLAR, Section 4, and product quantization: sums of table look-ups                     |
| `postings`        | SOLAR, Section 4: the items of each bucket, the best buckets, sums over what is posted |
| `products`        | inner products of few queries with many items, in the quicker order                    |

`compiled` says where the loops of `lookup_scan` and `postings` run, `compiled_loops` has them; `fused_kernel` is
`fused_scan`'s, in Triton, `fused_gradient_kernel` the other's, which `checked_gradient` compares before it is used;
`torch_threads` are threads that multiply as the main one does; `uploads` copies to a GPU what a request brings.
"""
