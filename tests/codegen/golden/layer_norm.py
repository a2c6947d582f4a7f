import triton
import triton.language as tl


@triton.jit
def layer_norm(arg2_1_ptr, arg0_1_ptr, arg1_1_ptr, _to_copy_1_ptr, SIZE_M: tl.constexpr, SIZE_N: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, NUM_STAGES: tl.constexpr):
    tile = tl.program_id(0)
    m_tile = tile
    m_start = m_tile * BLOCK_M
    m_idx = m_start
    acc2 = tl.full([], 0.0, tl.float32)
    acc6 = tl.full([], 0.0, tl.float32)
    n_high = SIZE_N
    n_cut = tl.maximum(0, tl.minimum(n_high, SIZE_N // BLOCK_N * BLOCK_N))
    for n_start in tl.range(0, n_cut, BLOCK_N, num_stages=NUM_STAGES):
        n_idx = n_start + tl.arange(0, BLOCK_N)
        # arg2_1
        arg2_1_0 = tl.load(arg2_1_ptr + (m_idx * 500 + n_idx))
        v0 = arg2_1_0.to(tl.float32)
        # _to_copy
        # var_mean_sum
        part2 = tl.sum(v0, axis=0)
        new2 = acc2 + part2
        taken2 = tl.minimum(BLOCK_N, SIZE_N - n_start) * 1.0
        tile2 = part2 * (500.0 / taken2)
        # var_mean_mean
        v3 = (tile2 * 0.002)
        # sub
        v4 = (v0 - v3)
        # var_mean_square
        v5 = (v4 * v4)
        # var_mean_total
        before6 = n_start * 1.0
        delta6 = part2 / taken2 - acc2 / tl.maximum(before6, 1.0)
        weight6 = before6 * taken2 / (before6 + taken2)
        acc6 = acc6 + tl.sum(v5, axis=0) + delta6 * delta6 * weight6
        acc2 = new2
    for n_start in tl.range(n_cut, n_high, BLOCK_N, num_stages=NUM_STAGES):
        n_idx = n_start + tl.arange(0, BLOCK_N)
        n_mask = n_idx < SIZE_N
        # arg2_1
        arg2_1_0 = tl.load(arg2_1_ptr + (m_idx * 500 + n_idx), mask=n_mask, other=0)
        v0 = arg2_1_0.to(tl.float32)
        # _to_copy
        # var_mean_sum
        part2 = tl.sum(tl.where(n_mask, v0, 0.0), axis=0)
        new2 = acc2 + part2
        taken2 = tl.minimum(BLOCK_N, SIZE_N - n_start) * 1.0
        tile2 = part2 * (500.0 / taken2)
        # var_mean_mean
        v3 = (tile2 * 0.002)
        # sub
        v4 = (v0 - v3)
        # var_mean_square
        v5 = (v4 * v4)
        # var_mean_total
        before6 = n_start * 1.0
        delta6 = part2 / taken2 - acc2 / tl.maximum(before6, 1.0)
        weight6 = before6 * taken2 / (before6 + taken2)
        acc6 = acc6 + tl.sum(tl.where(n_mask, v5, 0.0), axis=0) + delta6 * delta6 * weight6
        acc2 = new2
    # var_mean_mean
    v3 = (acc2 * 0.002)
    # var_mean_var
    v7 = (acc6 * 0.002)
    # add
    v8 = (v7 + 1e-05)
    # rsqrt
    v9 = tl.rsqrt(v8)
    n_high = SIZE_N
    n_cut = tl.maximum(0, tl.minimum(n_high, SIZE_N // BLOCK_N * BLOCK_N))
    for n_start in tl.range(0, n_cut, BLOCK_N, num_stages=NUM_STAGES):
        n_idx = n_start + tl.arange(0, BLOCK_N)
        # arg2_1
        arg2_1_0 = tl.load(arg2_1_ptr + (m_idx * 500 + n_idx))
        v0 = arg2_1_0.to(tl.float32)
        # _to_copy
        # sub
        v4 = (v0 - v3)
        # mul
        v10 = (v4 * v9)
        # arg0_1
        arg0_1_11 = tl.load(arg0_1_ptr + (n_idx))
        v11 = arg0_1_11.to(tl.float32)
        # mul_1
        v12 = (v10 * v11)
        # arg1_1
        arg1_1_13 = tl.load(arg1_1_ptr + (n_idx))
        v13 = arg1_1_13.to(tl.float32)
        # add_1
        v14 = (v12 + v13)
        # _to_copy_1
        tl.store(_to_copy_1_ptr + (m_idx * 500 + n_idx), v14.to(tl.float16))
    for n_start in tl.range(n_cut, n_high, BLOCK_N, num_stages=NUM_STAGES):
        n_idx = n_start + tl.arange(0, BLOCK_N)
        n_mask = n_idx < SIZE_N
        # arg2_1
        arg2_1_0 = tl.load(arg2_1_ptr + (m_idx * 500 + n_idx), mask=n_mask, other=0)
        v0 = arg2_1_0.to(tl.float32)
        # _to_copy
        # sub
        v4 = (v0 - v3)
        # mul
        v10 = (v4 * v9)
        # arg0_1
        arg0_1_11 = tl.load(arg0_1_ptr + (n_idx), mask=n_mask, other=0)
        v11 = arg0_1_11.to(tl.float32)
        # mul_1
        v12 = (v10 * v11)
        # arg1_1
        arg1_1_13 = tl.load(arg1_1_ptr + (n_idx), mask=n_mask, other=0)
        v13 = arg1_1_13.to(tl.float32)
        # add_1
        v14 = (v12 + v13)
        # _to_copy_1
        tl.store(_to_copy_1_ptr + (m_idx * 500 + n_idx), v14.to(tl.float16), mask=n_mask)
