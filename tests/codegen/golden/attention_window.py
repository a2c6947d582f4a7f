import triton
import triton.language as tl


@triton.jit
def attention_window(arg1_1_ptr, arg0_1_ptr, arg2_1_ptr, view_5_ptr, SIZE_M: tl.constexpr, SIZE_N: tl.constexpr, SIZE_P: tl.constexpr, SIZE_K: tl.constexpr, SIZE_L: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_L: tl.constexpr, NUM_STAGES: tl.constexpr):
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
    arg1_1_8 = tl.load(arg1_1_ptr + (l_idx[None, :] + m_idx * 3072 + n_idx[:, None] * 32))
    acc14 = tl.full([BLOCK_N], float('-inf'), tl.float32)
    acc17 = tl.full([BLOCK_N], 0.0, tl.float32)
    acc20 = tl.full([BLOCK_N, BLOCK_P], 0, tl.float32)
    for k_start in tl.range(tl.maximum(0, (-39 + n_start) // BLOCK_K * BLOCK_K), tl.minimum(SIZE_K, tl.maximum(0, 32 + n_start)), BLOCK_K, num_stages=NUM_STAGES):
        k_idx = k_start + tl.arange(0, BLOCK_K)
        v0 = (k_idx).to(tl.int64)
        # arange_1
        v1 = ((v0 * (1)) + (0))
        # gt
        v4 = (v1[None, :] > v3[:, None])
        # sub
        v5 = (v3[:, None] - v1[None, :])
        # ge
        v6 = (v5 >= (40))
        # bitwise_or
        v7 = (v4 | v6)
        # arg0_1
        arg0_1_9 = tl.load(arg0_1_ptr + (k_idx[None, :] * 32 + l_idx[:, None] + m_idx * 3072))
        # bmm
        v10 = tl.dot(arg1_1_8, arg0_1_9)
        # div
        v11 = (v10 / (5.656854249492381))
        # masked_fill
        v12 = tl.where(v7, tl.full([], float("-inf"), tl.float32), v11)
        # _to_copy
        v13 = v12
        # amax
        part14 = tl.max(v13, axis=1)
        new14 = tl.maximum(acc14, part14)
        safe14 = tl.where(new14 == float('-inf'), 0.0, new14)
        scale14 = tl.where(acc14 == new14, 1.0, tl.exp(acc14 - safe14))
        # sub_1
        v15 = (v13 - safe14[:, None])
        # exp
        v16 = tl.exp(v15)
        # sum_1
        acc17 = acc17 * scale14
        part17 = tl.sum(v16, axis=1)
        acc17 = acc17 + part17
        v19 = v16
        # arg2_1
        arg2_1_18 = tl.load(arg2_1_ptr + (k_idx[:, None] * 32 + m_idx * 3072 + p_idx[None, :]))
        # bmm_1
        acc20 = acc20 * scale14[:, None]
        op19 = v19.to(tl.float16)
        acc20 = tl.dot(op19, arg2_1_18, acc20)
        acc14 = new14
    # bmm_1
    v21 = (acc20 * (1.0 / acc17)[:, None])
    tl.store(view_5_ptr + (m_idx * 3072 + n_idx[:, None] * 32 + p_idx[None, :]), v21.to(tl.float16))
