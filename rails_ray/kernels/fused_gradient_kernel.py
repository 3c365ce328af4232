"""The kernel of `fused_gradient`, in Triton: needs a GPU, or Triton's interpreter.

A program holds R rows and the gate's weights, and goes through its columns, C at a time. Rows are items and columns
queries, or with IS_TURNED the other way round. Forward it writes scores; backward it computes all of a pair anew and
adds up the gradients of what it holds, so that no array [B, X, P] is ever written, and sums have one order.

A pair of components is at place p_r * PC + p_c of P. Masks depend on the words of query and item and on the pair
p_x * PQ + p_q alone, so that each launch draws the same.
"""

import triton
import triton.language as tl

from rails_ray.kernels.fused_kernel import silu_of_half, tanh_of

DROPPED = tl.constexpr(4.0)  # in place of the cosine of a gate that is dropped
LEAST = tl.constexpr(6e-8)  # in place of a logit of 0 that is kept


@triton.jit
def random_bits(bits):
    """32 random bits of each 32: lowbias32 by Chris Wellons (github.com/skeeto/hash-prospector)."""
    bits ^= bits >> 16
    bits *= 0x7FEB352D
    bits ^= bits >> 15
    bits *= 0x846CA68B
    return bits ^ (bits >> 16)


@triton.jit
def hidden_of(read, layer, bias, PRECISION: tl.constexpr):
    return tl.dot(read, layer, input_precision=PRECISION) + bias[None, :]


@triton.jit
def activated(hidden, IS_RELU: tl.constexpr, HAS_TANH: tl.constexpr):
    # NaN stays.
    return tl.where(hidden < 0, 0.0, hidden) if IS_RELU else silu_of_half(0.5 * hidden, HAS_TANH)


@triton.jit
def twice_the_slope(hidden, IS_RELU: tl.constexpr, HAS_TANH: tl.constexpr):
    """2 act'(hidden)."""
    if IS_RELU:
        slope = tl.where(hidden > 0, 2.0, 0.0)
    else:
        t = tanh_of(0.5 * hidden, HAS_TANH)
        slope = (1 + t) * (1 + 0.5 * hidden * (1 - t))
    return slope


# One compiled kernel for all sizes, so that what is checked when it is loaded is what runs.
@triton.jit(do_not_specialize=["num_rows", "num_columns", "columns_each", "logits_dropped", "gates_dropped", "zero"])
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
    zero,  # 0, which the compiler must not know
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
    N: tl.constexpr = R if R > 16 else 16  # columns of a small product
    operand = w1.dtype.element_ty
    # Numbers of 64 bits are scalars: there are not enough registers for more.
    first_row = tl.program_id(0).to(tl.int64) * R
    rows_left = tl.minimum(num_rows - first_row, R).to(tl.int32)
    lines = tl.arange(0, R * PR)
    rows = tl.arange(0, R)
    dk = tl.arange(0, DK)
    p = tl.arange(0, P)
    h = tl.arange(0, H // 2)
    x_lines = first_row * PR * DK + (lines[:, None] * DK + dk[None, :])
    line_is_there = (lines < rows_left * PR)[:, None]
    row_is_there = (rows < rows_left)[:, None]
    x_tile = tl.load(x + x_lines, mask=line_is_there, other=0.0)
    layer = h[:, None] * P + p[None, :]
    half: tl.constexpr = H // 2 * P
    first_a, first_b = tl.load(w1 + layer), tl.load(w1 + half + layer)
    second_a, second_b = tl.load(w2 + layer), tl.load(w2 + half + layer)
    turned_first_a, turned_first_b = tl.trans(first_a), tl.trans(first_b)
    turned_second_a, turned_second_b = tl.trans(second_a), tl.trans(second_b)
    pair_rows = tl.arange(0, R * C) // C
    pair_row_is_there = pair_rows < rows_left
    if DROPS:
        row_words = tl.load(x_words + first_row + pair_rows, mask=pair_row_is_there, other=0)
        row_words = row_words.to(tl.uint32, bitcast=True)
    if HAS_ROWS:
        of_rows = tl.zeros((R * PR, DK), tl.float32)
        of_row_gates = tl.zeros((P, N), tl.float32)
        is_of_row = (pair_rows[:, None] == tl.arange(0, N)[None, :]).to(operand)
    if HAS_WEIGHTS:
        of_first_a = tl.zeros((H // 2, P), tl.float32)
        of_first_b = tl.zeros((H // 2, P), tl.float32)
        of_second_a = tl.zeros((H // 2, P), tl.float32)
        of_second_b = tl.zeros((H // 2, P), tl.float32)
        of_first_bias_a = tl.zeros((H // 2, 16), tl.float32)
        of_first_bias_b = tl.zeros((H // 2, 16), tl.float32)
        of_second_bias = tl.zeros((P, 16), tl.float32)
        ones = tl.full((R * C, 16), 1.0, operand)
    first_column = tl.program_id(1) * columns_each
    last_column = tl.minimum(first_column + columns_each, num_columns)
    for column in range(first_column, last_column, C):
        # What depends on no column is read again and again, from a cache: kept, it would take half of the registers.
        same = column * zero
        columns_left = num_columns - column
        lines_y = tl.arange(0, C * PC)
        y_tile = tl.load(
            y + tl.cast(column, tl.int64) * (PC * DK) + (lines_y[:, None] * DK + dk[None, :]),
            mask=(lines_y < columns_left * PC)[:, None],
            other=0.0,
        )
        columns = tl.arange(0, C)
        y_gates = tl.load(
            y_gate + tl.cast(column, tl.int64) * P + (columns[:, None] * P + p[None, :]),
            mask=(columns < columns_left)[:, None],
            other=0.0,
        )
        products = tl.dot(x_tile, tl.trans(y_tile), input_precision=PRECISION).to(x_tile.dtype)
        cosines = tl.permute(tl.reshape(products, (R, PR, C, PC)), (0, 2, 1, 3))
        cosines = tl.reshape(cosines, (R * C, P))
        pair_columns = tl.arange(0, R * C) % C
        is_there = pair_row_is_there & (pair_columns < columns_left)
        read = cosines.to(operand)
        if DROPS:
            words = tl.load(y_words + column + pair_columns, mask=pair_columns < columns_left, other=0)
            words = row_words + words.to(tl.uint32, bitcast=True)
            numbers = p + same
            numbers = ((numbers % PC) * PR + numbers // PC if IS_TURNED else numbers).to(tl.uint32) * 0x9E3779B9
            bits = random_bits(words[:, None] + numbers[None, :])
            is_read = (bits & 0xFFFF).to(tl.int32) >= logits_dropped
            is_mixed = (bits >> 16).to(tl.int32) >= gates_dropped
            # What is mixed and read says what is kept: masks would take registers of their own.
            read = tl.where(is_read, tl.where(read == 0, LEAST, read), 0.0).to(operand)
            cosines = tl.where(is_mixed, cosines, DROPPED).to(cosines.dtype)
        bias = tl.load(b1 + same + h)
        active = activated(hidden_of(read, turned_first_a, bias, PRECISION), IS_RELU, HAS_TANH).to(operand)
        from_a = tl.dot(active, second_a, input_precision=PRECISION)
        bias = tl.load(b1 + same + H // 2 + h)
        active = activated(hidden_of(read, turned_first_b, bias, PRECISION), IS_RELU, HAS_TANH).to(operand)
        from_b = tl.dot(active, second_b, input_precision=PRECISION)
        x_gates = tl.load(
            x_gate + first_row * P + (same + rows[:, None] * P + p[None, :]), mask=row_is_there, other=0.0
        )
        second_bias = tl.load(b2 + same + p)
        offsets = x_gates[:, None, :] * y_gates[None, :, :] + second_bias[None, None, :]
        # Products between two sums keep the two from being added up in one accumulator (triton#10821).
        z = 0.5 * from_a + (0.5 * from_b + 0.5 * tl.reshape(offsets, (R * C, P)))
        z_tanh = tanh_of(z, HAS_TANH)
        gates = z * (1 + z_tanh)
        gates = tl.exp2((gates - tl.max(gates, axis=1)[:, None]) * 1.4426950408889634)
        if p_r * p_c < P:
            gates = tl.where(((p // PC < p_r) & (p % PC < p_c))[None, :], gates, 0.0)
        total = tl.sum(gates, axis=1)
        wide = cosines.to(tl.float32)
        if DROPS:
            gates = tl.where(wide == DROPPED, 0.0, gates)
            total = tl.maximum(tl.sum(gates, axis=1), 1e-6 * total)
        scores = tl.sum(gates * wide, axis=1) / total
        if IS_TURNED:
            places = pairs + first_row * num_columns + column + (pair_rows * num_columns + pair_columns)
        else:
            places = pairs + tl.cast(column, tl.int64) * num_rows + first_row + (pair_columns * num_rows + pair_rows)
        if HAS_ROWS or HAS_WEIGHTS:
            slopes = tl.load(places, mask=is_there, other=0.0)
            of_cosines = gates * (slopes / total)[:, None]
            of_z = of_cosines * (wide - scores[:, None]) * 0.5 * (1 + z_tanh) * (1 + z * (1 - z_tanh))
            of_z_rounded = of_z.to(operand)
            again = tl.where(read == 0, 0.0, read).to(operand)  # or else hidden units would be kept
            bias = tl.load(b1 + same + h)
            hidden = hidden_of(again, turned_first_a, bias, PRECISION)
            of_hidden = tl.dot(of_z_rounded, turned_second_a, input_precision=PRECISION)
            of_hidden *= twice_the_slope(hidden, IS_RELU, HAS_TANH)
            of_hidden_a = of_hidden.to(operand)
            if HAS_WEIGHTS:
                active = activated(hidden, IS_RELU, HAS_TANH).to(operand)
                of_first_a += tl.dot(tl.trans(of_hidden_a), read, input_precision=PRECISION)
                of_second_a += tl.dot(tl.trans(active), of_z_rounded, input_precision=PRECISION)
                of_first_bias_a += tl.dot(tl.trans(of_hidden_a), ones, input_precision=PRECISION)
            else:
                of_read_a = tl.dot(of_hidden_a, first_a, input_precision=PRECISION)
            bias = tl.load(b1 + same + H // 2 + h)
            hidden = hidden_of(again, turned_first_b, bias, PRECISION)
            of_hidden = tl.dot(of_z_rounded, turned_second_b, input_precision=PRECISION)
            of_hidden *= twice_the_slope(hidden, IS_RELU, HAS_TANH)
            of_hidden_b = of_hidden.to(operand)
            if HAS_WEIGHTS:
                active = activated(hidden, IS_RELU, HAS_TANH).to(operand)
                of_first_b += tl.dot(tl.trans(of_hidden_b), read, input_precision=PRECISION)
                of_second_b += tl.dot(tl.trans(active), of_z_rounded, input_precision=PRECISION)
                of_first_bias_b += tl.dot(tl.trans(of_hidden_b), ones, input_precision=PRECISION)
                of_second_bias += tl.dot(tl.trans(of_z_rounded), ones, input_precision=PRECISION)
            else:
                of_read_b = tl.dot(of_hidden_b, first_b, input_precision=PRECISION)
            if HAS_ROWS:
                of_read = 0.5 * of_read_a + 0.5 * of_read_b
                if DROPS:
                    of_read = tl.where(read == 0, 0.0, of_read)
                by_line = tl.reshape((of_cosines + of_read).to(operand), (R, C, PR, PC))
                by_line = tl.reshape(tl.permute(by_line, (0, 2, 1, 3)), (R * PR, C * PC))
                of_rows += tl.dot(by_line, y_tile.to(operand), input_precision=PRECISION)
                by_gate = tl.reshape(tl.reshape(of_z, (R, C, P)) * y_gates[None, :, :], (R * C, P)).to(operand)
                of_row_gates += tl.dot(tl.trans(by_gate), is_of_row, input_precision=PRECISION)
        else:
            tl.store(places, scores, mask=is_there)
    if HAS_ROWS:
        earlier = tl.program_id(1).to(tl.int64) * num_rows
        tl.store(of_x + earlier * (PR * DK) + x_lines, of_rows, mask=line_is_there)
        own = tl.arange(0, N)[None, :]
        into_gates = of_x_gate + (earlier + first_row) * P + (own * P + p[:, None])
        tl.store(into_gates, of_row_gates, mask=own < rows_left)
    if HAS_WEIGHTS:
        program = tl.program_id(1).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
        into = of_weights + program * (2 * H * P + H + P)
        tl.store(into + layer, 0.5 * of_first_a)
        tl.store(into + half + layer, 0.5 * of_first_b)
        tl.store(into + 2 * half + layer, of_second_a)
        tl.store(into + 3 * half + layer, of_second_b)
        tl.store(into + 4 * half + h, tl.sum(of_first_bias_a, axis=1) / 32)
        tl.store(into + 4 * half + H // 2 + h, tl.sum(of_first_bias_b, axis=1) / 32)
        tl.store(into + 4 * half + H + p, tl.sum(of_second_bias, axis=1) / 16)
