import triton
import triton.language as tl


@triton.jit
def sigmoid(x):
    root = tl.rsqrt(1.0 + tl.exp2(x * -1.4426950408889634))
    return root * root


@triton.jit
def group_norm_silu(arg0_1_ptr, arg1_1_ptr, arg2_1_ptr, silu_ptr, SIZE_M: tl.constexpr, SIZE_N: tl.constexpr, SIZE_P: tl.constexpr, SIZE_Q: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_Q: tl.constexpr, NUM_STAGES: tl.constexpr):
    tile = tl.program_id(0)
    p_tile = tile % 3
    rest_p = tile // 3
    m_tile = rest_p
    m_start = m_tile * BLOCK_M
    m_idx = m_start
    n_start = 0
    n_idx = n_start + tl.arange(0, BLOCK_N)
    p_start = p_tile * BLOCK_P
    p_idx = p_start
    acc2 = tl.full([BLOCK_N, BLOCK_Q], 0.0, tl.float32)
    for q_start in tl.range(0, SIZE_Q, BLOCK_Q, num_stages=NUM_STAGES):
        q_idx = q_start + tl.arange(0, BLOCK_Q)
        q_mask = q_idx < SIZE_Q
        # arg0_1
        arg0_1_0 = tl.load(arg0_1_ptr + (m_idx * 1200 + n_idx[:, None] * 100 + p_idx * 400 + q_idx[None, :]), mask=q_mask[None, :], other=0)
        v0 = arg0_1_0.to(tl.float32)
        # _to_copy
        # var_mean_sum
        acc2 = acc2 + tl.where(q_mask[None, :], v0, 0.0)
    v2 = tl.sum(tl.sum(acc2, axis=1), axis=0)
    # var_mean_mean
    v3 = (v2 * 0.0025)
    acc6 = tl.full([BLOCK_N, BLOCK_Q], 0.0, tl.float32)
    for q_start in tl.range(0, SIZE_Q, BLOCK_Q, num_stages=NUM_STAGES):
        q_idx = q_start + tl.arange(0, BLOCK_Q)
        q_mask = q_idx < SIZE_Q
        # arg0_1
        arg0_1_0 = tl.load(arg0_1_ptr + (m_idx * 1200 + n_idx[:, None] * 100 + p_idx * 400 + q_idx[None, :]), mask=q_mask[None, :], other=0)
        v0 = arg0_1_0.to(tl.float32)
        # _to_copy
        # var_mean_centred
        v4 = (v0 - v3)
        # var_mean_square
        v5 = (v4 * v4)
        # var_mean_total
        acc6 = acc6 + tl.where(q_mask[None, :], v5, 0.0)
    v6 = tl.sum(tl.sum(acc6, axis=1), axis=0)
    # var_mean_var
    v7 = (v6 * 0.0025)
    # add
    v8 = (v7 + 1e-05)
    # rsqrt
    v9 = tl.rsqrt(v8)
    # arg1_1
    arg1_1_10 = tl.load(arg1_1_ptr + (n_idx + p_idx * 4))
    v10 = arg1_1_10.to(tl.float32)
    # mul
    v11 = (v9 * v10)
    # neg
    v13 = (-v3)
    # mul_1
    v14 = (v13 * v11)
    # arg2_1
    arg2_1_15 = tl.load(arg2_1_ptr + (n_idx + p_idx * 4))
    v15 = arg2_1_15.to(tl.float32)
    # add_1
    v16 = (v14 + v15)
    for q_start in tl.range(0, SIZE_Q, BLOCK_Q, num_stages=NUM_STAGES):
        q_idx = q_start + tl.arange(0, BLOCK_Q)
        q_mask = q_idx < SIZE_Q
        # arg0_1
        arg0_1_0 = tl.load(arg0_1_ptr + (m_idx * 1200 + n_idx[:, None] * 100 + p_idx * 400 + q_idx[None, :]), mask=q_mask[None, :], other=0)
        v0 = arg0_1_0.to(tl.float32)
        # _to_copy
        # mul_2
        v12 = (v0 * v11[:, None])
        # add_2
        v17 = (v12 + v16[:, None])
        # _to_copy_1
        # silu
        v19 = (v17 * sigmoid(v17))
        tl.store(silu_ptr + (m_idx * 1200 + n_idx[:, None] * 100 + p_idx * 400 + q_idx[None, :]), v19.to(tl.float16), mask=q_mask[None, :])
