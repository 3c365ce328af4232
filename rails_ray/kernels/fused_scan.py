"""Scores of a Mixture of Logits by one kernel: cosines, gate and mixture of a tile of items stay on the chip.

The equation is that of `mol_scan`. Products take operands of 16 bits and are added up in float32, so that scores are
off by some 1e-4 to 1e-3: enough to say which items can be among the best, whose scores are then computed in float32
(`search.methods.on_gpu`). What a score costs is in docs/log/gpu.md.

    silu(x) = x sigmoid(x) = h + h tanh(h),   h = x / 2        so halves, and 1 / tau, go into the weights; a relu of
                                                               the hidden layer needs no half

A shape is padded: P_Q, P_X and H to powers of two, with at least 16 pairs and 16 hidden units; d to a power of two, or
above 128 to a multiple of 128. Padded pairs get no weight.

Axes: B queries, X items, P_Q / P_X components, P = P_Q * P_X, d width, H hidden width.
"""

import logging
import re
from dataclasses import dataclass
from functools import cache
from types import ModuleType

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from rails_ray.kernels.mol_scan import Gate, plain_scores
from rails_ray.kernels.top_k import LOW_WORD, TopK, select_by_tiles

# Triton 3.4 and later, before this one, compile some products wrongly on Hopper (fla-org/flash-linear-attention#640).
LEAST_TRITON = (3, 7, 1)
LEAST_OF_A_PRODUCT = 16
WIDEST_TILE = 128  # of d, which a program holds at once
LARGEST_LAYER = 2**15  # P * H: 64 KB of 16 bits, twice
MOST_PAIRS = 256
TILE_PAIRS = 64  # queries * items of one product of the gate
PROGRAMS = 1024  # that keep a large GPU busy: with fewer tiles of items, queries are shared out too
LARGEST_IN_FLOAT16 = 2.0**14  # that a gate's hidden layer may reach; above, operands are of bfloat16
TILES = (128, 16, 1)  # scores of which a selection first looks at the best
TILE_BLOCK = 2048  # scores of a program of it
CHECKED_QUERIES, CHECKED_ITEMS = 5, 256
CHECKED_K, CHECKED_SCORES = 4, (200, 2_000, 5_000)  # of which `select` takes one, two and three steps
# Of the spread of the scores: above, what was compiled is wrong. Measured: 0.007 and 0.06.
MOST_ERROR = {torch.float16: 0.03, torch.bfloat16: 0.2, torch.float32: 0.001}


@dataclass(frozen=True)
class Tiling:
    """How a shape is cut and padded: the constants of the kernel."""

    p_q: int
    p_x: int
    d: int
    PQ: int
    PX: int
    DK: int
    ND: int
    H: int
    NQ: int
    BX: int

    @classmethod
    def of(
        cls, num_components: tuple[int, int], width: int, hidden: int, *, is_single: bool = False
    ) -> "Tiling | None":
        """Choose it; None for a gate that does not fit a program.

        Args:
            is_single: for one query. With 8 components or more it needs no padding queries: a product of 8 columns is
                slower, but it is half the work.
        """
        p_q, p_x = num_components
        padded_q, padded_x = power_of_two(p_q), power_of_two(p_x)
        padded_x = max(padded_x, LEAST_OF_A_PRODUCT // padded_q)
        padded_h = max(power_of_two(hidden), LEAST_OF_A_PRODUCT)
        if padded_q * padded_x > MOST_PAIRS or padded_q * padded_x * padded_h > LARGEST_LAYER:
            return None
        at_once = max(power_of_two(width), LEAST_OF_A_PRODUCT) if width <= WIDEST_TILE else WIDEST_TILE
        queries = 1 if is_single and padded_q >= LEAST_OF_A_PRODUCT // 2 else max(LEAST_OF_A_PRODUCT // padded_q, 2)
        items = max(TILE_PAIRS // queries, LEAST_OF_A_PRODUCT // padded_x, 1)
        return cls(p_q, p_x, width, padded_q, padded_x, at_once, -(-width // at_once), padded_h, queries, items)


class FusedScan:
    """A gate that is ready to score on its device, in one kernel.

    Args:
        operand: dtype of the operands of products; by default float16 or, if a hidden unit might overflow it, bfloat16.

    Raises:
        ValueError: if the gate does not fit a program, or Triton is not there.
    """

    def __init__(
        self, gate: Gate, num_components: tuple[int, int], width: int, operand: torch.dtype | None = None
    ) -> None:
        kernel, tiling = triton_kernels(), Tiling.of(num_components, width, len(gate.first))
        if kernel is None or tiling is None:
            raise ValueError("a fused scan needs Triton 3.7.1 or later, and a gate that fits a program")
        self.kernel = kernel
        self.tiling = tiling
        self.single = Tiling.of(num_components, width, len(gate.first), is_single=True) or tiling
        self.order = _padded_order(tiling, gate.first.device)  # of pairs; P stands for padding
        self.is_relu = gate.activation == "relu"
        part = 1 if self.is_relu else 2
        first = self._by_pair(gate.first.float()).T / (part * gate.temperature)  # [P', H]
        largest = float((first.abs().sum(dim=0) + gate.first_bias.abs() / part).max())
        self.operand = operand or (torch.float16 if largest < LARGEST_IN_FLOAT16 else torch.bfloat16)
        more = tiling.H - len(gate.first)
        self.first = F.pad(first, (0, more)).to(self.operand).contiguous()
        self.first_bias = F.pad(gate.first_bias.float() / part, (0, more))
        second = self._by_pair(gate.second.float().T / 2)  # [H, P']
        self.second = F.pad(second, (0, 0, 0, more)).to(self.operand).contiguous()
        self.second_bias = self._by_pair(gate.second_bias.float() / 2).contiguous()
        self.options = {"num_warps": 4 if self.first.numel() <= LARGEST_LAYER // 2 else 8}
        self.options["num_stages"] = 3 if tiling.ND == 1 else 1  # more parts of d at once do not fit a multiprocessor

    def scores(
        self,
        f: Float[Tensor, "B P_Q d"],
        u: Float[Tensor, "B P"],
        g: Float[Tensor, "X P_X d"],
        v: Float[Tensor, "X P"],
        rows: Int[Tensor, " n"] | None = None,
    ) -> Float[Tensor, "B _"]:
        """Scores of the items for each query; inf where a product overflowed, or a state is NaN.

        Args:
            g, v: item states in any floating dtype.
            rows: int64, the items to score, in any order; their states are read where they lie. By default all.
        """
        tiling, num = self.single if len(f) == 1 else self.tiling, len(g if rows is None else rows)
        num_queries = -(-len(f) // tiling.NQ) * tiling.NQ
        found = f.new_empty(num_queries, num, dtype=torch.float32)
        if not found.numel():
            return found[: len(f)]
        more = num_queries - len(f)
        padding = (0, tiling.DK * tiling.ND - tiling.d, 0, tiling.PQ - tiling.p_q, 0, more)
        queries = F.pad(f.to(self.operand), padding).contiguous()
        offsets = F.pad(self._by_pair(u.float() / 2), (0, 0, 0, more)).contiguous()
        num_tiles = -(-num // tiling.BX)
        shares = min(max(PROGRAMS // num_tiles, 1), num_queries // tiling.NQ)
        each = -(-num_queries // (tiling.NQ * shares)) * tiling.NQ
        grid = num_tiles, -(-num_queries // each)
        with torch.cuda.device_of(f):
            self.kernel.mol_scores[grid](
                queries,
                offsets,
                g.contiguous(),
                v.contiguous(),
                found if rows is None else rows.contiguous(),
                self.first,
                self.first_bias,
                self.second,
                self.second_bias,
                found,
                num,
                num_queries,
                each,
                **vars(tiling),
                HAS_ROWS=rows is not None,
                IS_RELU=self.is_relu,
                HAS_TANH=f.is_cuda and torch.version.hip is None,
                PRECISION="ieee",
                **self.options,
            )
        return found[: len(f)]

    def _by_pair(self, values: Float[Tensor, "... P"]) -> Float[Tensor, "... P_"]:
        """`values` in the kernel's order of pairs, zero at padded ones."""
        return F.pad(values, (0, 1)).index_select(-1, self.order)


@torch.no_grad()
def fused_scan(gate: Gate, num_components: tuple[int, int], width: int, stored: torch.dtype) -> FusedScan | str:
    """Compile a fused scan and compare it with `plain_scores` on the gate's device, a GPU, as a compiler may be wrong
    where nothing else shows it. Return why there is none, which is logged once, if there is no compiler or its result
    is wrong.

    Args:
        stored: dtype of the item states.

    Raises:
        ValueError: if Triton interprets kernels, which takes minutes for a search.
    """
    reason = why_missing()
    if reason is None and Tiling.of(num_components, width, len(gate.first)) is None:
        reason = f"a gate of {gate.first.shape[1]} pairs and {len(gate.first)} hidden units does not fit a program"
    if reason is None:
        try:
            scan = FusedScan(gate, num_components, width)
            reason = _fault(scan, gate, stored)
        except Exception as failure:  # a compiler's own, of any kind: the other scan is right, and slower
            reason = f"it could not be compiled: {type(failure).__name__}: {failure}"
        else:
            if reason is None:
                return scan
    _warn(reason)
    return reason


@cache
def _warn(reason: str) -> None:
    """Log a reason once in a process, however many shards and versions have it."""
    logging.getLogger(__name__).warning("a GPU scans without the fused kernel, at a tenth of its speed: %s", reason)


def _fault(scan: FusedScan, gate: Gate, stored: torch.dtype) -> str | None:
    """Return what is wrong with the kernels as they were compiled; None if they are right."""
    error = largest_error(scan, gate, stored)
    if not error <= MOST_ERROR[scan.operand]:
        return f"it is compiled wrongly: scores are off by {error:.2g} of their spread"
    if not selects_rightly(gate.first.device):
        return "it is compiled wrongly: its selection misses some of the best scores"
    return None


def largest_error(scan: FusedScan, gate: Gate, stored: torch.dtype) -> float:
    """How far scores of random states are from `plain_scores`, over the spread of these: of several queries and of
    one, of all items and of a list of rows."""
    generator = torch.Generator().manual_seed(0)
    p_q, p_x, width = scan.tiling.p_q, scan.tiling.p_x, scan.tiling.d

    def drawn(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=generator).to(gate.first.device)

    f = F.normalize(drawn(CHECKED_QUERIES, p_q, width), dim=2)
    g = F.normalize(drawn(CHECKED_ITEMS, p_x, width), dim=2).to(stored)
    u, v = drawn(CHECKED_QUERIES, p_q * p_x), drawn(CHECKED_ITEMS, p_q * p_x).to(stored)
    exact = plain_scores(f, u, g.float(), v.float(), gate)
    listed = torch.randperm(CHECKED_ITEMS, generator=generator).to(f.device)
    worst = 0.0
    for num in (CHECKED_QUERIES, 1):
        for rows, expected in ((None, exact[:num]), (listed, exact[:num, listed])):
            own = scan.scores(f[:num], u[:num], g, v, rows)
            worst = max(worst, float((own - expected).abs().amax().nan_to_num(torch.inf)))
    return worst / float(exact.std())


def selects_rightly(device: torch.device) -> bool:
    """Return whether `select` finds what `select_by_tiles` does among random scores, many of them equal. It takes one,
    two and three steps for them, which are all that are compiled."""
    generator = torch.Generator().manual_seed(0)
    for num in CHECKED_SCORES:
        scores = torch.randint(-40, 40, (CHECKED_QUERIES, num), generator=generator).to(device) / 3
        found, expected = select(scores, CHECKED_K), select_by_tiles(scores, CHECKED_K)
        found = select_by_tiles(found.scores, CHECKED_K, found.item_rows)  # which are in any order
        if not (torch.equal(found.scores, expected.scores) and torch.equal(found.item_rows, expected.item_rows)):
            return False
    return True


def select(scores: Float[Tensor, "B X"], k: int) -> TopK:
    """`top_k.select_by_tiles` in few kernels: the k best tiles by their best score, the k best tiles of
    these, the k best scores in them, in any order. A tile that is left out has k tiles before it, each with a score
    that is higher or, if equal, of a lower row."""
    kernel = triton_kernels()
    assert kernel is not None
    num_queries, num_items = scores.shape
    keys, larger, num_parents = None, 1, 1
    for tile in TILES:
        each = larger // tile
        num = -(-num_items // tile) if keys is None else keys.shape[1] * each
        if tile > 1 and num <= 4 * k:
            continue  # as many as are looked for: smaller ones at once
        found = torch.empty(num_queries, num, dtype=torch.int64, device=scores.device)
        block = max(TILE_BLOCK // tile, 1)
        with torch.cuda.device_of(scores):
            kernel.tile_keys[(-(-num // block), num_queries)](
                scores, found if keys is None else keys, found, num_items, num_parents, num,
                EACH=each, TILE=tile, BLOCK=block, HAS_PARENTS=keys is not None,
            )  # fmt: skip
        keys = found.topk(min(k, num), dim=1, sorted=False).values
        larger, num_parents = tile, keys.shape[1]
    assert keys is not None
    ordered = (keys >> 32).int()
    best = (ordered ^ ((ordered >> 31) & (2**31 - 1))).view(torch.float32)
    return TopK(best, (LOW_WORD - (keys & LOW_WORD)).masked_fill_(best == -torch.inf, 0))


def why_missing() -> str | None:
    """Why there is no kernel; None if there is one."""
    kernel = triton_kernels()
    if kernel is None:
        return f"triton {'.'.join(map(str, LEAST_TRITON))} or later is not installed: pip install 'rails-ray[gpu]'"
    if kernel.IS_INTERPRETED:
        raise ValueError(
            "TRITON_INTERPRET must not be set where a GPU scans or trains, got 1: unset it, and start anew"
        )
    return None


@cache
def triton_kernels() -> ModuleType | None:
    """`fused_kernel`; None if Triton is missing or too old."""
    try:
        import triton

        if tuple(map(int, re.findall(r"\d+", triton.__version__)[:3])) < LEAST_TRITON:
            return None
        from rails_ray.kernels import fused_kernel
    except ImportError:
        return None
    return fused_kernel


def _padded_order(tiling: Tiling, device: torch.device) -> Int[Tensor, " P_"]:
    """The pair p = p_q * P_X + p_x at each place of the kernel's order, p_x first; P for a padded place."""
    place = torch.arange(tiling.PX * tiling.PQ, device=device)
    p_x, p_q = place // tiling.PQ, place % tiling.PQ
    is_pair = (p_x < tiling.p_x) & (p_q < tiling.p_q)
    return torch.where(is_pair, p_q * tiling.p_x + p_x, tiling.p_q * tiling.p_x)


def power_of_two(number: int) -> int:
    return 1 << max(number - 1, 0).bit_length()
