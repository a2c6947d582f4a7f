import triton
import triton.language as tl


@triton.jit
def relu_chain(arg0_1_ptr, arg1_1_ptr, arg2_1_ptr, relu_1_ptr, SIZE_M: tl.constexpr, SIZE_N: tl.constexpr, SIZE_K: tl.constexpr, SIZE_L: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_L: tl.constexpr, NUM_STAGES: tl.constexpr):
    tile = tl.program_id(0)
    m_tile = tile
    m_start = m_tile * BLOCK_M
    m_idx = m_start + tl.arange(0, BLOCK_M)
    m_mask = m_idx < SIZE_M
    n_start = 0
    n_idx = n_start + tl.arange(0, BLOCK_N)
    l_start = 0
    l_idx = l_start + tl.arange(0, BLOCK_L)
    # arg0_1
    arg0_1_0 = tl.load(arg0_1_ptr + (l_idx[None, :] + m_idx[:, None] * 32), mask=m_mask[:, None], other=0)
    acc5 = tl.full([BLOCK_M, BLOCK_N], 0, tl.float32)
    for k_start in tl.range(0, SIZE_K, BLOCK_K, num_stages=NUM_STAGES):
        k_idx = k_start + tl.arange(0, BLOCK_K)
        # arg1_1
        arg1_1_1 = tl.load(arg1_1_ptr + (k_idx[None, :] + l_idx[:, None] * 48))
        # mm
        v2 = tl.dot(arg0_1_0, arg1_1_1)
        # relu
        v3 = tl.maximum(v2, 0.0, propagate_nan=tl.PropagateNan.ALL)
        # arg2_1
        arg2_1_4 = tl.load(arg2_1_ptr + (k_idx[:, None] * 32 + n_idx[None, :]))
        # mm_1
        op3 = v3.to(tl.float16)
        acc5 = tl.dot(op3, arg2_1_4, acc5)
    # relu_1
    v6 = tl.maximum(acc5, 0.0, propagate_nan=tl.PropagateNan.ALL)
    tl.store(relu_1_ptr + (m_idx[:, None] * 32 + n_idx[None, :]), v6.to(tl.float16), mask=m_mask[:, None])
