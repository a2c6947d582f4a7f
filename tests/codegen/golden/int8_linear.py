import triton
import triton.language as tl


@triton.jit
def int8_linear(arg1_1_ptr, arg0_1_ptr, arg2_1_ptr, mul_ptr, SIZE_M: tl.constexpr, SIZE_N: tl.constexpr, SIZE_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, NUM_STAGES: tl.constexpr):
    tile = tl.program_id(0)
    n_tile = tile % 2
    rest_n = tile // 2
    m_tile = rest_n
    m_start = m_tile * BLOCK_M
    m_idx = m_start + tl.arange(0, BLOCK_M)
    m_mask = m_idx < SIZE_M
    n_start = n_tile * BLOCK_N
    n_idx = n_start + tl.arange(0, BLOCK_N)
    n_mask = n_idx < SIZE_N
    acc3 = tl.full([BLOCK_M, BLOCK_N], 0, tl.float32)
    for k_start in tl.range(0, SIZE_K, BLOCK_K, num_stages=NUM_STAGES):
        k_idx = k_start + tl.arange(0, BLOCK_K)
        k_mask = k_idx < SIZE_K
        # arg1_1
        arg1_1_0 = tl.load(arg1_1_ptr + (k_idx[None, :] + m_idx[:, None] * 80), mask=m_mask[:, None] & k_mask[None, :], other=0)
        # arg0_1
        arg0_1_1 = tl.load(arg0_1_ptr + (k_idx[:, None] + n_idx[None, :] * 80), mask=k_mask[:, None] & n_mask[None, :], other=0)
        # _to_copy
        v2 = arg0_1_1.to(tl.float32)
        # mm
        op2 = tl.where(k_mask[:, None], v2, 0.0).to(tl.float16)
        acc3 = tl.dot(arg1_1_0, op2, acc3)
    # arg2_1
    arg2_1_4 = tl.load(arg2_1_ptr + (n_idx), mask=n_mask, other=0)
    v4 = arg2_1_4.to(tl.float32)
    # mul
    v5 = (acc3 * v4[None, :])
    tl.store(mul_ptr + (m_idx[:, None] * 48 + n_idx[None, :]), v5.to(tl.float16), mask=m_mask[:, None] & n_mask[None, :])
