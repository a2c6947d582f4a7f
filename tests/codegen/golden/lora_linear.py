import triton
import triton.language as tl


@triton.jit
def lora_linear(arg0_1_ptr, arg2_1_ptr, arg3_1_ptr, arg1_1_ptr, add_ptr, SIZE_M: tl.constexpr, SIZE_N: tl.constexpr, SIZE_K: tl.constexpr, SIZE_L: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_L: tl.constexpr, NUM_STAGES: tl.constexpr):
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
    l_start = 0
    l_idx = l_start + tl.arange(0, BLOCK_L)
    acc3 = tl.full([BLOCK_M, BLOCK_L], 0, tl.float32)
    for k_start in tl.range(0, SIZE_K, BLOCK_K, num_stages=NUM_STAGES):
        k_idx = k_start + tl.arange(0, BLOCK_K)
        k_mask = k_idx < SIZE_K
        # arg0_1
        arg0_1_0 = tl.load(arg0_1_ptr + (k_idx[None, :] + m_idx[:, None] * 80), mask=m_mask[:, None] & k_mask[None, :], other=0)
        # arg2_1
        arg2_1_2 = tl.load(arg2_1_ptr + (k_idx[:, None] + l_idx[None, :] * 80), mask=k_mask[:, None], other=0)
        # mm_1
        acc3 = tl.dot(arg0_1_0, arg2_1_2, acc3)
    # arg3_1
    arg3_1_4 = tl.load(arg3_1_ptr + (l_idx[:, None] + n_idx[None, :] * 16), mask=n_mask[None, :], other=0)
    # mm_2
    op3 = acc3.to(tl.float16)
    v5 = tl.dot(op3, arg3_1_4)
    # mul
    v6 = (v5 * 2.0)
    acc8 = v6
    for k_start in tl.range(0, SIZE_K, BLOCK_K, num_stages=NUM_STAGES):
        k_idx = k_start + tl.arange(0, BLOCK_K)
        k_mask = k_idx < SIZE_K
        # arg0_1
        arg0_1_0 = tl.load(arg0_1_ptr + (k_idx[None, :] + m_idx[:, None] * 80), mask=m_mask[:, None] & k_mask[None, :], other=0)
        # arg1_1
        arg1_1_1 = tl.load(arg1_1_ptr + (k_idx[:, None] + n_idx[None, :] * 80), mask=k_mask[:, None] & n_mask[None, :], other=0)
        # mm
        acc8 = tl.dot(arg0_1_0, arg1_1_1, acc8)
    # add
    tl.store(add_ptr + (m_idx[:, None] * 48 + n_idx[None, :]), acc8.to(tl.float16), mask=m_mask[:, None] & n_mask[None, :])
