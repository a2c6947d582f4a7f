import triton
import triton.language as tl


@triton.jit
def natural_exp(x):
    return tl.exp2(x * 1.4426950408889634)


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
    # arange
    v1 = n_idx
    # arg1_1
    arg1_1_6 = tl.load(arg1_1_ptr + (l_idx[None, :] + m_idx * 3072 + n_idx[:, None] * 32))
    acc12 = tl.full([BLOCK_N], float('-inf'), tl.float32)
    acc15 = tl.full([BLOCK_N], 0.0, tl.float32)
    acc18 = tl.full([BLOCK_N, BLOCK_P], 0, tl.float32)
    k_high = tl.minimum(SIZE_K, tl.maximum(0, 32 + n_start))
    k_low = tl.maximum(0, (-39 + n_start) // BLOCK_K * BLOCK_K)
    k_free = tl.minimum(k_high, tl.maximum(k_low, (7 + n_start) // BLOCK_K * BLOCK_K))
    k_cut = tl.maximum(k_free, tl.minimum(k_high, (1 + n_start) // BLOCK_K * BLOCK_K))
    for k_start in tl.range(k_low, k_free, BLOCK_K, num_stages=NUM_STAGES):
        k_idx = k_start + tl.arange(0, BLOCK_K)
        # arange_1
        v0 = k_idx
        # gt
        v2 = (v0[None, :] > v1[:, None])
        # sub
        v3 = (v1[:, None] - v0[None, :])
        # ge
        v4 = (v3 >= 40)
        # bitwise_or
        v5 = (v2 | v4)
        # arg0_1
        arg0_1_7 = tl.load(arg0_1_ptr + (k_idx[None, :] * 32 + l_idx[:, None] + m_idx * 3072))
        # bmm
        v8 = tl.dot(arg1_1_6, arg0_1_7)
        # div
        v9 = (v8 * 0.17677669529663687)
        # masked_fill
        v10 = tl.where(v5, float("-inf"), v9)
        # _to_copy
        # amax
        part12 = tl.max(v10, axis=1)
        new12 = tl.maximum(acc12, part12)
        safe12 = tl.where(new12 == float('-inf'), 0.0, new12)
        scale12 = tl.where(acc12 == new12, 1.0, natural_exp(acc12 - safe12))
        # sub_1
        v13 = (v10 - safe12[:, None])
        # exp
        v14 = natural_exp(v13)
        # sum_1
        acc15 = acc15 * scale12
        part15 = tl.sum(v14, axis=1)
        acc15 = acc15 + part15
        # arg2_1
        arg2_1_16 = tl.load(arg2_1_ptr + (k_idx[:, None] * 32 + m_idx * 3072 + p_idx[None, :]))
        # bmm_1
        acc18 = acc18 * scale12[:, None]
        op17 = v14.to(tl.float16)
        acc18 = tl.dot(op17, arg2_1_16, acc18)
        acc12 = new12
    for k_start in tl.range(k_free, k_cut, BLOCK_K, num_stages=NUM_STAGES):
        k_idx = k_start + tl.arange(0, BLOCK_K)
        # arg0_1
        arg0_1_7 = tl.load(arg0_1_ptr + (k_idx[None, :] * 32 + l_idx[:, None] + m_idx * 3072))
        # bmm
        v8 = tl.dot(arg1_1_6, arg0_1_7)
        # div
        v9 = (v8 * 0.17677669529663687)
        # masked_fill
        # _to_copy
        # amax
        part12 = tl.max(v9, axis=1)
        new12 = tl.maximum(acc12, part12)
        safe12 = tl.where(new12 == float('-inf'), 0.0, new12)
        scale12 = tl.where(acc12 == new12, 1.0, natural_exp(acc12 - safe12))
        # sub_1
        v13 = (v9 - safe12[:, None])
        # exp
        v14 = natural_exp(v13)
        # sum_1
        acc15 = acc15 * scale12
        part15 = tl.sum(v14, axis=1)
        acc15 = acc15 + part15
        # arg2_1
        arg2_1_16 = tl.load(arg2_1_ptr + (k_idx[:, None] * 32 + m_idx * 3072 + p_idx[None, :]))
        # bmm_1
        acc18 = acc18 * scale12[:, None]
        op17 = v14.to(tl.float16)
        acc18 = tl.dot(op17, arg2_1_16, acc18)
        acc12 = new12
    for k_start in tl.range(k_cut, k_high, BLOCK_K, num_stages=NUM_STAGES):
        k_idx = k_start + tl.arange(0, BLOCK_K)
        # arange_1
        v0 = k_idx
        # gt
        v2 = (v0[None, :] > v1[:, None])
        # sub
        v3 = (v1[:, None] - v0[None, :])
        # ge
        v4 = (v3 >= 40)
        # bitwise_or
        v5 = (v2 | v4)
        # arg0_1
        arg0_1_7 = tl.load(arg0_1_ptr + (k_idx[None, :] * 32 + l_idx[:, None] + m_idx * 3072))
        # bmm
        v8 = tl.dot(arg1_1_6, arg0_1_7)
        # div
        v9 = (v8 * 0.17677669529663687)
        # masked_fill
        v10 = tl.where(v5, float("-inf"), v9)
        # _to_copy
        # amax
        part12 = tl.max(v10, axis=1)
        new12 = tl.maximum(acc12, part12)
        safe12 = tl.where(new12 == float('-inf'), 0.0, new12)
        scale12 = tl.where(acc12 == new12, 1.0, natural_exp(acc12 - safe12))
        # sub_1
        v13 = (v10 - safe12[:, None])
        # exp
        v14 = natural_exp(v13)
        # sum_1
        acc15 = acc15 * scale12
        part15 = tl.sum(v14, axis=1)
        acc15 = acc15 + part15
        # arg2_1
        arg2_1_16 = tl.load(arg2_1_ptr + (k_idx[:, None] * 32 + m_idx * 3072 + p_idx[None, :]))
        # bmm_1
        acc18 = acc18 * scale12[:, None]
        op17 = v14.to(tl.float16)
        acc18 = tl.dot(op17, arg2_1_16, acc18)
        acc12 = new12
    # bmm_1
    v19 = (acc18 * (1.0 / acc15)[:, None])
    tl.store(view_5_ptr + (m_idx * 3072 + n_idx[:, None] * 32 + p_idx[None, :]), v19.to(tl.float16))
