"""The kernel of `fused_scan`, in Triton: needs a GPU, or Triton's interpreter.

A program holds the components of BX items and the gate's weights, and goes through its queries, NQ at a time, so that
each product has the 16 columns that matrix units take. Nothing but scores is written.
"""

import triton
import triton.language as tl

IS_INTERPRETED = bool(triton.knobs.runtime.interpret)


@triton.jit
def tanh_of(h, has_tanh: tl.constexpr):
    if has_tanh:
        t = tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [h], dtype=tl.float32, is_pure=True, pack=1)
    else:
        t = 2 * tl.sigmoid(2 * tl.minimum(tl.maximum(h, -40.0), 40.0)) - 1
    return t


@triton.jit
def silu_of_half(h, has_tanh: tl.constexpr):
    """silu(2 h) = h + h tanh(h)."""
    return h * tanh_of(h, has_tanh) + h


# One compiled kernel for all sizes, and for lists that begin at any row, so that what is checked when it is loaded is
# what runs.
@triton.jit(do_not_specialize=["rows", "num", "num_queries", "queries_each"])
def mol_scores(
    f,  # [B', PQ, DK * ND] components of queries
    u,  # [B', PX * PQ] their part of the gate, halved
    g,  # [X, p_x, d] components of items, as stored
    v,  # [X, p_q * p_x] their part of the gate, as stored
    rows,  # [n] int64, the items to score if HAS_ROWS; all of them in order, n = X, if not
    w1,  # [PX * PQ, H] the gate's first layer over 2 tau; over tau if IS_RELU
    b1,  # [H], halved; whole if IS_RELU
    w2,  # [H, PX * PQ], halved
    b2,  # [PX * PQ], halved
    out,  # [B', n]
    num,  # n
    num_queries,  # B', a multiple of NQ
    queries_each,  # queries of a program, a multiple of NQ
    p_q: tl.constexpr,
    p_x: tl.constexpr,
    d: tl.constexpr,
    PQ: tl.constexpr,
    PX: tl.constexpr,
    DK: tl.constexpr,
    ND: tl.constexpr,
    H: tl.constexpr,
    NQ: tl.constexpr,
    BX: tl.constexpr,
    HAS_ROWS: tl.constexpr,
    IS_RELU: tl.constexpr,
    HAS_TANH: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Scores of the items for each query; inf in place of NaN, so that an overflow is looked at and not lost."""
    P: tl.constexpr = PX * PQ
    operand = w1.dtype.element_ty
    first_item = tl.program_id(0).to(tl.int64) * BX
    places = first_item + tl.arange(0, BX)
    # A component's item and number: rows of g come item by item, and padding reads as zeros.
    lines = tl.arange(0, BX * PX)
    line_places = first_item + lines // PX
    line_is_there = (line_places < num) & (lines % PX < p_x)
    items, line_items = places, line_places
    if HAS_ROWS:
        items = tl.load(rows + places, mask=places < num, other=0)
        line_items = tl.load(rows + line_places, mask=line_places < num, other=0)
    line_start = (line_items * p_x + lines % PX) * d
    dk = tl.arange(0, DK)
    p = tl.arange(0, P)
    h = tl.arange(0, H)
    n = tl.arange(0, NQ * PQ)
    is_pair = (p // PQ < p_x) & (p % PQ < p_q)
    stored = (p % PQ) * p_x + p // PQ  # v holds pairs by the query's component first
    v_tile = tl.load(
        v + items[:, None] * (p_q * p_x) + stored[None, :], mask=(places < num)[:, None] & is_pair[None, :], other=0.0
    ).to(tl.float32)
    if ND == 1:
        g_tile = tl.load(
            g + line_start[:, None] + dk[None, :], mask=line_is_there[:, None] & (dk < d)[None, :], other=0.0
        ).to(operand)
    first_layer = tl.load(w1 + p[:, None] * H + h[None, :])
    second_layer = tl.load(w2 + h[:, None] * P + p[None, :])
    first_bias = tl.load(b1 + h)
    second_bias = tl.load(b2 + p)
    pair_places = first_item + tl.arange(0, BX * NQ) // NQ
    pair_queries = (tl.arange(0, BX * NQ) % NQ).to(tl.int64)
    first_query = tl.program_id(1) * queries_each
    last_query = tl.minimum(first_query + queries_each, num_queries)
    for query in range(first_query, last_query, NQ):
        f_start = f + (query * PQ + n).to(tl.int64)[None, :] * (DK * ND) + dk[:, None]
        if ND == 1:
            products = tl.dot(g_tile, tl.load(f_start), input_precision=PRECISION)
        else:
            products = tl.zeros((BX * PX, NQ * PQ), tl.float32)
            for number in tl.static_range(ND):
                own = number * DK + dk
                g_part = tl.load(
                    g + line_start[:, None] + own[None, :], mask=line_is_there[:, None] & (own < d)[None, :], other=0.0
                ).to(operand)
                products += tl.dot(g_part, tl.load(f_start + number * DK), input_precision=PRECISION)
        cosines = tl.permute(tl.reshape(products.to(operand), (BX, PX, NQ, PQ)), (0, 2, 1, 3))
        cosines = tl.reshape(cosines, (BX * NQ, P))
        hidden = tl.dot(cosines, first_layer, input_precision=PRECISION) + first_bias[None, :]
        hidden = tl.maximum(hidden, 0.0) if IS_RELU else silu_of_half(hidden, HAS_TANH)
        z = tl.dot(hidden.to(operand), second_layer, input_precision=PRECISION)
        u_tile = tl.load(u + (query + tl.arange(0, NQ))[:, None] * P + p[None, :])
        offsets = u_tile[None, :, :] * v_tile[:, None, :] + second_bias[None, None, :]
        gates = silu_of_half(z + tl.reshape(offsets, (BX * NQ, P)), HAS_TANH)
        gates = tl.exp2((gates - tl.max(gates, axis=1)[:, None]) * 1.4426950408889634)
        if p_q * p_x < P:
            gates = tl.where(is_pair[None, :], gates, 0.0)
        scores = tl.sum(gates * cosines.to(tl.float32), axis=1) / tl.sum(gates, axis=1)
        scores = tl.where(scores == scores, scores, float("inf"))
        tl.store(out + (query + pair_queries) * num + pair_places, scores, mask=pair_places < num)


@triton.jit(do_not_specialize=["num_items", "num_parents", "num"])
def tile_keys(
    scores,  # [B, X]
    parents,  # [B, n] keys of the larger tiles that are looked into, if HAS_PARENTS
    out,  # [B, N] keys of tiles
    num_items,  # X
    num_parents,  # n
    num,  # N
    EACH: tl.constexpr,  # tiles of a larger tile
    TILE: tl.constexpr,  # scores of a tile, 1 for the scores themselves
    BLOCK: tl.constexpr,  # tiles of a program
    HAS_PARENTS: tl.constexpr,
):
    """The best score of each tile and the tile's number as one integer: a better score is a larger integer, and of two
    equal scores the lower tile has it. NaN counts as -inf."""
    query = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tile = place
    if HAS_PARENTS:
        parent = tl.load(parents + query * num_parents + place // EACH, mask=place < num, other=0)
        tile = (0xFFFFFFFF - (parent & 0xFFFFFFFF)) * EACH + place % EACH
    item = tile[:, None] * TILE + tl.arange(0, TILE)[None, :]
    is_there = (place < num)[:, None] & (item < num_items)
    own = tl.load(scores + query * num_items + item, mask=is_there, other=-float("inf"))
    own = tl.max(tl.where(own == own, own, -float("inf")), axis=1) + 0.0  # 0, not -0
    bits = own.to(tl.int32, bitcast=True)
    ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)
    tl.store(out + query * num + place, (ordered << 32) | (0xFFFFFFFF - tile), mask=place < num)
