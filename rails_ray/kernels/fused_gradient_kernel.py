"""The kernel of `fused_gradient`, in Triton: needs a GPU, or Triton's interpreter.

A program holds R rows and the gate's weights, and goes through its columns, C at a time. Rows are items and columns
queries, or with IS_TURNED the other way round. Forward it writes scores; backward it computes all of a pair anew and
adds up the gradients of what it holds, so that no array [B, X, P] is ever written, and sums have one order.

A pair of components is at place p_r * PC + p_c of P. Masks depend on the words of query and item and on the pair
p_x * PQ + p_q alone, so that each launch draws the same.
"""

import triton
import triton.language as tl

from rails_ray.kernels.fused_kernel import tanh_of


@triton.jit
def random_bits(bits):
    """32 random bits of each 32: lowbias32 by Chris Wellons (github.com/skeeto/hash-prospector)."""
    bits ^= bits >> 16
    bits *= 0x7FEB352D
    bits ^= bits >> 15
    bits *= 0x846CA68B
    return bits ^ (bits >> 16)


@triton.jit
def slope_of_silu(x, t):
    """silu'(x), with t = tanh(x / 2)."""
    return 0.5 * (1 + t) * (1 + 0.5 * x * (1 - t))


# One compiled kernel for all sizes, so that what is checked when it is loaded is what runs.
@triton.jit(do_not_specialize=["num_rows", "num_columns", "columns_each", "logits_dropped", "gates_dropped"])
def mol_training(
    x,  # [num_rows, PR, DK] components of rows
    x_gate,  # [num_rows, P] their part of the gate
    x_words,  # [num_rows] random words, read if DROPS
    y,  # [num_columns, PC, DK] components of columns
    y_gate,  # [num_columns, P]
    y_words,  # [num_columns]
    w1,  # [H, P] the gate's first layer over tau and the share of logits that are kept
    b1,  # [H]
    w2,  # [H, P] its second layer, transposed
    b2,  # [P]
    pairs,  # [queries, items] scores, which are written; backward their slopes, which are read
    of_x,  # [shares, num_rows, PR, DK] gradients, written if HAS_ROWS
    of_x_gate,  # [shares, num_rows, P]
    of_weights,  # [programs, 2 * H * P + H + P] of w1, w2, b1 and b2, written if HAS_WEIGHTS
    num_rows,
    num_columns,
    columns_each,  # columns of a program, a multiple of C
    logits_dropped,  # of 65,536
    gates_dropped,
    p_r: tl.constexpr,
    p_c: tl.constexpr,
    PR: tl.constexpr,
    PC: tl.constexpr,
    DK: tl.constexpr,
    H: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
    IS_TURNED: tl.constexpr,
    HAS_ROWS: tl.constexpr,
    HAS_WEIGHTS: tl.constexpr,
    DROPS: tl.constexpr,
    IS_RELU: tl.constexpr,
    HAS_TANH: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Scores of all pairs of rows and columns, or gradients."""
    P: tl.constexpr = PR * PC
    operand = w1.dtype.element_ty
    first_row = tl.program_id(0).to(tl.int64) * R
    rows = first_row + tl.arange(0, R)
    lines = first_row * PR + tl.arange(0, R * PR)
    dk = tl.arange(0, DK)
    p = tl.arange(0, P)
    h = tl.arange(0, H)
    line_is_there = (lines < num_rows * PR)[:, None]
    row_is_there = (rows < num_rows)[:, None]
    x_tile = tl.load(x + lines[:, None] * DK + dk[None, :], mask=line_is_there, other=0.0)
    x_gates = tl.load(x_gate + rows[:, None] * P + p[None, :], mask=row_is_there, other=0.0)
    layer = h[:, None] * P + p[None, :]
    first_layer = tl.load(w1 + layer)
    second_layer = tl.load(w2 + layer)
    first_bias = tl.load(b1 + h)
    second_bias = tl.load(b2 + p)
    pair_rows = first_row + tl.arange(0, R * C) // C
    pair_row_is_there = pair_rows < num_rows
    if DROPS:
        number = (p % PC) * PR + p // PC if IS_TURNED else p
        numbers = number.to(tl.uint32) * 0x9E3779B9
        row_words = tl.load(x_words + pair_rows, mask=pair_row_is_there, other=0).to(tl.uint32, bitcast=True)
    if HAS_ROWS:
        of_rows = tl.zeros((R * PR, DK), tl.float32)
        of_row_gates = tl.zeros((R, P), tl.float32)
    if HAS_WEIGHTS:
        of_first = tl.zeros((H, P), tl.float32)
        of_second = tl.zeros((H, P), tl.float32)
        of_first_bias = tl.zeros((H,), tl.float32)
        of_second_bias = tl.zeros((P,), tl.float32)
    first_column = tl.program_id(1) * columns_each
    last_column = tl.minimum(first_column + columns_each, num_columns)
    for column in range(first_column, last_column, C):
        columns = (column + tl.arange(0, C)).to(tl.int64)
        column_is_there = (columns < num_columns)[:, None]
        y_lines = (column * PC + tl.arange(0, C * PC)).to(tl.int64)
        y_is_there = (y_lines < num_columns * PC)[:, None]
        y_tile = tl.load(y + y_lines[:, None] * DK + dk[None, :], mask=y_is_there, other=0.0)
        y_gates = tl.load(y_gate + columns[:, None] * P + p[None, :], mask=column_is_there, other=0.0)
        products = tl.dot(x_tile, tl.trans(y_tile), input_precision=PRECISION).to(x_tile.dtype)
        cosines = tl.permute(tl.reshape(products, (R, PR, C, PC)), (0, 2, 1, 3))
        cosines = tl.reshape(cosines, (R * C, P))
        pair_columns = (column + tl.arange(0, R * C) % C).to(tl.int64)
        is_there = pair_row_is_there & (pair_columns < num_columns)
        read = cosines.to(operand)
        if DROPS:
            words = tl.load(y_words + pair_columns, mask=pair_columns < num_columns, other=0)
            words = row_words + words.to(tl.uint32, bitcast=True)
            bits = random_bits(words[:, None] + numbers[None, :])
            is_read = (bits & 0xFFFF).to(tl.int32) >= logits_dropped
            is_mixed = (bits >> 16).to(tl.int32) >= gates_dropped
            read = tl.where(is_read, read, 0.0).to(operand)
        hidden = tl.dot(read, tl.trans(first_layer), input_precision=PRECISION) + first_bias[None, :]
        if IS_RELU:
            active = tl.where(hidden < 0, 0.0, hidden)  # NaN stays
        else:
            hidden_tanh = tanh_of(0.5 * hidden, HAS_TANH)
            active = 0.5 * hidden * (1 + hidden_tanh)
        active = active.to(operand)
        offsets = x_gates[:, None, :] * y_gates[None, :, :] + second_bias[None, None, :]
        z = tl.dot(active, second_layer, input_precision=PRECISION) + tl.reshape(offsets, (R * C, P))
        z_tanh = tanh_of(0.5 * z, HAS_TANH)
        gates = 0.5 * z * (1 + z_tanh)
        gates = tl.exp2((gates - tl.max(gates, axis=1)[:, None]) * 1.4426950408889634)
        if p_r * p_c < P:
            gates = tl.where(((p // PC < p_r) & (p % PC < p_c))[None, :], gates, 0.0)
        total = tl.sum(gates, axis=1)
        if DROPS:
            gates = tl.where(is_mixed, gates, 0.0)
            total = tl.maximum(tl.sum(gates, axis=1), 1e-6 * total)
        wide = cosines.to(tl.float32)
        scores = tl.sum(gates * wide, axis=1) / total
        if IS_TURNED:
            places = pairs + pair_rows * num_columns + pair_columns
        else:
            places = pairs + pair_columns * num_rows + pair_rows
        if HAS_ROWS or HAS_WEIGHTS:
            slopes = tl.load(places, mask=is_there, other=0.0)
            of_cosines = gates * (slopes / total)[:, None]
            of_z = of_cosines * (wide - scores[:, None]) * slope_of_silu(z, z_tanh)
            of_z_rounded = of_z.to(operand)
            of_hidden = tl.dot(of_z_rounded, tl.trans(second_layer), input_precision=PRECISION)
            if IS_RELU:
                of_hidden = tl.where(hidden > 0, of_hidden, 0.0)
            else:
                of_hidden *= slope_of_silu(hidden, hidden_tanh)
            of_hidden_rounded = of_hidden.to(operand)
            if HAS_WEIGHTS:
                of_first += tl.dot(tl.trans(of_hidden_rounded), read, input_precision=PRECISION)
                of_second += tl.dot(tl.trans(active), of_z_rounded, input_precision=PRECISION)
                of_first_bias += tl.sum(of_hidden, axis=0)
                of_second_bias += tl.sum(of_z, axis=0)
            if HAS_ROWS:
                of_read = tl.dot(of_hidden_rounded, first_layer, input_precision=PRECISION)
                if DROPS:
                    of_read = tl.where(is_read, of_read, 0.0)
                by_line = tl.reshape((of_cosines + of_read).to(operand), (R, C, PR, PC))
                by_line = tl.reshape(tl.permute(by_line, (0, 2, 1, 3)), (R * PR, C * PC))
                of_rows += tl.dot(by_line, y_tile.to(operand), input_precision=PRECISION)
                of_row_gates += tl.sum(tl.reshape(of_z, (R, C, P)) * y_gates[None, :, :], axis=1)
        else:
            tl.store(places, scores, mask=is_there)
    if HAS_ROWS:
        earlier = tl.program_id(1).to(tl.int64) * num_rows
        tl.store(of_x + (earlier * PR + lines)[:, None] * DK + dk[None, :], of_rows, mask=line_is_there)
        tl.store(of_x_gate + (earlier + rows)[:, None] * P + p[None, :], of_row_gates, mask=row_is_there)
    if HAS_WEIGHTS:
        program = tl.program_id(1).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
        into = of_weights + program * (2 * H * P + H + P)
        tl.store(into + layer, of_first)
        tl.store(into + H * P + layer, of_second)
        tl.store(into + 2 * H * P + h, of_first_bias)
        tl.store(into + 2 * H * P + H + p, of_second_bias)
