import triton
import triton.language as tl


@triton.jit
def linear_head_norm(arg0_1_ptr, arg1_1_ptr, arg2_1_ptr, _to_copy_1_ptr, SIZE_M: tl.constexpr, SIZE_N: tl.constexpr, SIZE_P: tl.constexpr, SIZE_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_K: tl.constexpr, NUM_STAGES: tl.constexpr):
    tile = tl.program_id(0)
    n_tile = tile % 3
    rest_n = tile // 3
    m_tile = rest_n
    m_start = m_tile * BLOCK_M
    m_idx = m_start + tl.arange(0, BLOCK_M)
    m_mask = m_idx < SIZE_M
    n_start = n_tile * BLOCK_N
    n_idx = n_start
    p_start = 0
    p_idx = p_start + tl.arange(0, BLOCK_P)
    acc2 = tl.full([BLOCK_M, BLOCK_P], 0, tl.float32)
    for k_start in tl.range(0, SIZE_K, BLOCK_K, num_stages=NUM_STAGES):
        k_idx = k_start + tl.arange(0, BLOCK_K)
        k_mask = k_idx < SIZE_K
        # arg0_1
        arg0_1_0 = tl.load(arg0_1_ptr + (k_idx[None, :] + m_idx[:, None] * 80), mask=m_mask[:, None] & k_mask[None, :], other=0)
        # arg1_1
        arg1_1_1 = tl.load(arg1_1_ptr + (k_idx[:, None] + n_idx * 2560 + p_idx[None, :] * 80), mask=k_mask[:, None], other=0)
        # mm
        acc2 = tl.dot(arg0_1_0, arg1_1_1, acc2)
    # _to_copy
    # pow_1
    v4 = (acc2 * acc2)
    # mean_sum
    v5 = tl.sum(v4, axis=1)
    # mean
    v6 = (v5 * 0.03125)
    # add
    v7 = (v6 + 9.999999974752427e-07)
    # rsqrt
    v8 = tl.rsqrt(v7)
    # mul
    v9 = (acc2 * v8[:, None])
    # arg2_1
    arg2_1_10 = tl.load(arg2_1_ptr + (p_idx))
    v10 = arg2_1_10.to(tl.float32)
    # mul_1
    v11 = (v9 * v10[None, :])
    # _to_copy_1
    tl.store(_to_copy_1_ptr + (m_idx[:, None] * 96 + n_idx * 32 + p_idx[None, :]), v11.to(tl.float16), mask=m_mask[:, None])
