import triton
import triton.language as tl


@triton.jit
def attention_causal(arg1_1_ptr, arg0_1_ptr, arg2_1_ptr, view_5_ptr, SIZE_M: tl.constexpr, SIZE_N: tl.constexpr, SIZE_P: tl.constexpr, SIZE_K: tl.constexpr, SIZE_L: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_L: tl.constexpr, NUM_STAGES: tl.constexpr):
    tile = tl.program_id(0)
    n_tile = tile % 3
    rest_n = tile // 3
    m_tile = rest_n
    m_start = m_tile * BLOCK_M
    m_idx = m_start
    n_start = n_tile * BLOCK_N
    n_idx = n_start + tl.arange(0, BLOCK_N)
    p_start = 0
    p_idx = p_start + tl.arange(0, BLOCK_P)
    l_start = 0
    l_idx = l_start + tl.arange(0, BLOCK_L)
    v2 = (n_idx).to(tl.int64)
    # arange
    v3 = ((v2 * (1)) + (0))
    # arg1_1
    arg1_1_5 = tl.load(arg1_1_ptr + (l_idx[None, :] + m_idx * 3072 + n_idx[:, None] * 32))
    acc11 = tl.full([BLOCK_N], float('-inf'), tl.float32)
    acc14 = tl.full([BLOCK_N], 0.0, tl.float32)
    acc17 = tl.full([BLOCK_N, BLOCK_P], 0, tl.float32)
    for k_start in tl.range(0, tl.minimum(SIZE_K, tl.maximum(0, 32 + n_start)), BLOCK_K, num_stages=NUM_STAGES):
        k_idx = k_start + tl.arange(0, BLOCK_K)
        v0 = (k_idx).to(tl.int64)
        # arange_1
        v1 = ((v0 * (1)) + (0))
        # gt
        v4 = (v1[None, :] > v3[:, None])
        # arg0_1
        arg0_1_6 = tl.load(arg0_1_ptr + (k_idx[None, :] * 32 + l_idx[:, None] + m_idx * 3072))
        # bmm
        v7 = tl.dot(arg1_1_5, arg0_1_6)
        # div
        v8 = (v7 / (5.656854249492381))
        # masked_fill
        v9 = tl.where(v4, tl.full([], float("-inf"), tl.float32), v8)
        # _to_copy
        v10 = v9
        # amax
        part11 = tl.max(v10, axis=1)
        new11 = tl.maximum(acc11, part11)
        safe11 = tl.where(new11 == float('-inf'), 0.0, new11)
        scale11 = tl.where(acc11 == new11, 1.0, tl.exp(acc11 - safe11))
        # sub
        v12 = (v10 - safe11[:, None])
        # exp
        v13 = tl.exp(v12)
        # sum_1
        acc14 = acc14 * scale11
        part14 = tl.sum(v13, axis=1)
        acc14 = acc14 + part14
        v16 = v13
        # arg2_1
        arg2_1_15 = tl.load(arg2_1_ptr + (k_idx[:, None] * 32 + m_idx * 3072 + p_idx[None, :]))
        # bmm_1
        acc17 = acc17 * scale11[:, None]
        op16 = v16.to(tl.float16)
        acc17 = tl.dot(op16, arg2_1_15, acc17)
        acc11 = new11
    # bmm_1
    v18 = (acc17 * (1.0 / acc14)[:, None])
    tl.store(view_5_ptr + (m_idx * 3072 + n_idx[:, None] * 32 + p_idx[None, :]), v18.to(tl.float16))
