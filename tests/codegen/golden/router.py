import triton
import triton.language as tl


@triton.jit
def natural_exp(x):
    return tl.exp2(x * 1.4426950408889634)


@triton.jit
def router(arg0_1_ptr, arg1_1_ptr, div_ptr, SIZE_M: tl.constexpr, SIZE_N: tl.constexpr, SIZE_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, NUM_STAGES: tl.constexpr):
    tile = tl.program_id(0)
    m_tile = tile
    m_start = m_tile * BLOCK_M
    m_idx = m_start + tl.arange(0, BLOCK_M)
    m_mask = m_idx < SIZE_M
    n_start = 0
    n_idx = n_start + tl.arange(0, BLOCK_N)
    n_mask = n_idx < SIZE_N
    acc2 = tl.full([BLOCK_M, BLOCK_N], 0, tl.float32)
    for k_start in tl.range(0, SIZE_K, BLOCK_K, num_stages=NUM_STAGES):
        k_idx = k_start + tl.arange(0, BLOCK_K)
        k_mask = k_idx < SIZE_K
        # arg0_1
        arg0_1_0 = tl.load(arg0_1_ptr + (k_idx[None, :] + m_idx[:, None] * 80), mask=m_mask[:, None] & k_mask[None, :], other=0)
        # arg1_1
        arg1_1_1 = tl.load(arg1_1_ptr + (k_idx[:, None] + n_idx[None, :] * 80), mask=k_mask[:, None] & n_mask[None, :], other=0)
        # mm
        acc2 = tl.dot(arg0_1_0, arg1_1_1, acc2)
    # _to_copy
    # amax
    v4 = tl.max(tl.where(n_mask[None, :], acc2, float('-inf')), axis=1)
    # sub
    v5 = (acc2 - v4[:, None])
    # exp
    v6 = natural_exp(v5)
    # sum_1
    v7 = tl.sum(tl.where(n_mask[None, :], v6, 0.0), axis=1)
    # div
    v8 = (v6 * (1.0 / v7)[:, None])
    tl.store(div_ptr + (m_idx[:, None] * 24 + n_idx[None, :]), v8, mask=m_mask[:, None] & n_mask[None, :])
