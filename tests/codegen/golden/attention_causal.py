import triton
import triton.language as tl


@triton.jit
def natural_exp(x):
    return tl.exp2(x * 1.4426950408889634)


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
    # arange
    v1 = n_idx
    # arg1_1
    arg1_1_3 = tl.load(arg1_1_ptr + (l_idx[None, :] + m_idx * 3072 + n_idx[:, None] * 32))
    acc9 = tl.full([BLOCK_N], float('-inf'), tl.float32)
    acc12 = tl.full([BLOCK_N], 0.0, tl.float32)
    acc15 = tl.full([BLOCK_N, BLOCK_P], 0, tl.float32)
    k_high = tl.minimum(SIZE_K, tl.maximum(0, 32 + n_start))
    k_cut = tl.maximum(0, tl.minimum(k_high, (1 + n_start) // BLOCK_K * BLOCK_K))
    for k_start in tl.range(0, k_cut, BLOCK_K, num_stages=NUM_STAGES):
        k_idx = k_start + tl.arange(0, BLOCK_K)
        # arg0_1
        arg0_1_4 = tl.load(arg0_1_ptr + (k_idx[None, :] * 32 + l_idx[:, None] + m_idx * 3072))
        # bmm
        v5 = tl.dot(arg1_1_3, arg0_1_4)
        # div
        v6 = (v5 * 0.17677669529663687)
        # masked_fill
        # _to_copy
        # amax
        part9 = tl.max(v6, axis=1)
        new9 = tl.maximum(acc9, part9)
        safe9 = tl.where(new9 == float('-inf'), 0.0, new9)
        scale9 = tl.where(acc9 == new9, 1.0, natural_exp(acc9 - safe9))
        # sub
        v10 = (v6 - safe9[:, None])
        # exp
        v11 = natural_exp(v10)
        # sum_1
        acc12 = acc12 * scale9
        part12 = tl.sum(v11, axis=1)
        acc12 = acc12 + part12
        # arg2_1
        arg2_1_13 = tl.load(arg2_1_ptr + (k_idx[:, None] * 32 + m_idx * 3072 + p_idx[None, :]))
        # bmm_1
        acc15 = acc15 * scale9[:, None]
        op14 = v11.to(tl.float16)
        acc15 = tl.dot(op14, arg2_1_13, acc15)
        acc9 = new9
    for k_start in tl.range(k_cut, k_high, BLOCK_K, num_stages=NUM_STAGES):
        k_idx = k_start + tl.arange(0, BLOCK_K)
        # arange_1
        v0 = k_idx
        # gt
        v2 = (v0[None, :] > v1[:, None])
        # arg0_1
        arg0_1_4 = tl.load(arg0_1_ptr + (k_idx[None, :] * 32 + l_idx[:, None] + m_idx * 3072))
        # bmm
        v5 = tl.dot(arg1_1_3, arg0_1_4)
        # div
        v6 = (v5 * 0.17677669529663687)
        # masked_fill
        v7 = tl.where(v2, float("-inf"), v6)
        # _to_copy
        # amax
        part9 = tl.max(v7, axis=1)
        new9 = tl.maximum(acc9, part9)
        safe9 = tl.where(new9 == float('-inf'), 0.0, new9)
        scale9 = tl.where(acc9 == new9, 1.0, natural_exp(acc9 - safe9))
        # sub
        v10 = (v7 - safe9[:, None])
        # exp
        v11 = natural_exp(v10)
        # sum_1
        acc12 = acc12 * scale9
        part12 = tl.sum(v11, axis=1)
        acc12 = acc12 + part12
        # arg2_1
        arg2_1_13 = tl.load(arg2_1_ptr + (k_idx[:, None] * 32 + m_idx * 3072 + p_idx[None, :]))
        # bmm_1
        acc15 = acc15 * scale9[:, None]
        op14 = v11.to(tl.float16)
        acc15 = tl.dot(op14, arg2_1_13, acc15)
        acc9 = new9
    # bmm_1
    v16 = (acc15 * (1.0 / acc12)[:, None])
    tl.store(view_5_ptr + (m_idx * 3072 + n_idx[:, None] * 32 + p_idx[None, :]), v16.to(tl.float16))
