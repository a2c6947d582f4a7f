import triton
import triton.language as tl


@triton.jit
def sigmoid(x):
    root = tl.rsqrt(1.0 + tl.exp2(x * -1.4426950408889634))
    return root * root


@triton.jit
def gated_mlp_up(arg0_1_ptr, arg1_1_ptr, arg2_1_ptr, mul_ptr, SIZE_M: tl.constexpr, SIZE_N: tl.constexpr, SIZE_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, NUM_STAGES: tl.constexpr):
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
    acc2 = tl.full([BLOCK_M, BLOCK_N], 0, tl.float32)
    acc5 = tl.full([BLOCK_M, BLOCK_N], 0, tl.float32)
    for k_start in tl.range(0, SIZE_K, BLOCK_K, num_stages=NUM_STAGES):
        k_idx = k_start + tl.arange(0, BLOCK_K)
        # arg0_1
        arg0_1_0 = tl.load(arg0_1_ptr + (k_idx[None, :] + m_idx[:, None] * 48), mask=m_mask[:, None], other=0)
        # arg1_1
        arg1_1_1 = tl.load(arg1_1_ptr + (k_idx[:, None] + n_idx[None, :] * 48), mask=n_mask[None, :], other=0)
        # mm
        acc2 = tl.dot(arg0_1_0, arg1_1_1, acc2)
        # arg2_1
        arg2_1_4 = tl.load(arg2_1_ptr + (k_idx[:, None] + n_idx[None, :] * 48), mask=n_mask[None, :], other=0)
        # mm_1
        acc5 = tl.dot(arg0_1_0, arg2_1_4, acc5)
    # silu
    v3 = (acc2 * sigmoid(acc2))
    # mul
    v6 = (v3 * acc5)
    tl.store(mul_ptr + (m_idx[:, None] * 56 + n_idx[None, :]), v6.to(tl.float16), mask=m_mask[:, None] & n_mask[None, :])
