"""Kernels: tensors in, tensors out, for inference alone; each beside the plain version that it must equal.

| member     | what it is                                                                   |
|------------|------------------------------------------------------------------------------|
| `mol_scan` | RAILS, Section 3: scores of a Mixture of Logits over cached item-side state  |
"""
