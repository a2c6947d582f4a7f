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
    # arange
    v1 = n_idx
    # arg1_1
    arg1_1_6 = tl.load(arg1_1_ptr + (l_idx[None, :] + m_idx * 3072 + n_idx[:, None] * 32))
    acc10 = tl.full([BLOCK_N], float('-inf'), tl.float32)
    acc12 = tl.full([BLOCK_N], 0.0, tl.float32)
    acc15 = tl.full([BLOCK_N, BLOCK_P], 0, tl.float32)
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
        # masked_fill
        v9 = tl.where(v5, float("-inf"), v8)
        # amax
        part10 = tl.max(v9, axis=1)
        new10 = tl.maximum(acc10, part10)
        safe10 = tl.where(new10 == float('-inf'), 0.0, new10)
        rate10 = tl.where(tl.abs(safe10) < 526272083.4793858, 0.25503486164919736, 0.25)
        shift10 = safe10 * rate10
        scale10 = tl.where(acc10 == new10, 1.0, tl.exp2(tl.minimum(acc10 * rate10, shift10) - shift10))
        # exp
        v11 = tl.exp2(tl.fma(v9, rate10[:, None], -shift10[:, None]))
        # sum_1
        acc12 = acc12 * scale10
        part12 = tl.sum(v11, axis=1)
        acc12 = acc12 + part12
        # arg2_1
        arg2_1_13 = tl.load(arg2_1_ptr + (k_idx[:, None] * 32 + m_idx * 3072 + p_idx[None, :]))
        # bmm_1
        acc15 = acc15 * scale10[:, None]
        op14 = v11.to(tl.float16)
        acc15 = tl.dot(op14, arg2_1_13, acc15)
        acc10 = new10
    for k_start in tl.range(k_free, k_cut, BLOCK_K, num_stages=NUM_STAGES):
        k_idx = k_start + tl.arange(0, BLOCK_K)
        # arg0_1
        arg0_1_7 = tl.load(arg0_1_ptr + (k_idx[None, :] * 32 + l_idx[:, None] + m_idx * 3072))
        # bmm
        v8 = tl.dot(arg1_1_6, arg0_1_7)
        # masked_fill
        # amax
        part10 = tl.max(v8, axis=1)
        new10 = tl.maximum(acc10, part10)
        safe10 = tl.where(new10 == float('-inf'), 0.0, new10)
        rate10 = tl.where(tl.abs(safe10) < 526272083.4793858, 0.25503486164919736, 0.25)
        shift10 = safe10 * rate10
        scale10 = tl.where(acc10 == new10, 1.0, tl.exp2(tl.minimum(acc10 * rate10, shift10) - shift10))
        # exp
        v11 = tl.exp2(tl.fma(v8, rate10[:, None], -shift10[:, None]))
        # sum_1
        acc12 = acc12 * scale10
        part12 = tl.sum(v11, axis=1)
        acc12 = acc12 + part12
        # arg2_1
        arg2_1_13 = tl.load(arg2_1_ptr + (k_idx[:, None] * 32 + m_idx * 3072 + p_idx[None, :]))
        # bmm_1
        acc15 = acc15 * scale10[:, None]
        op14 = v11.to(tl.float16)
        acc15 = tl.dot(op14, arg2_1_13, acc15)
        acc10 = new10
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
        # masked_fill
        v9 = tl.where(v5, float("-inf"), v8)
        # amax
        part10 = tl.max(v9, axis=1)
        new10 = tl.maximum(acc10, part10)
        safe10 = tl.where(new10 == float('-inf'), 0.0, new10)
        rate10 = tl.where(tl.abs(safe10) < 526272083.4793858, 0.25503486164919736, 0.25)
        shift10 = safe10 * rate10
        scale10 = tl.where(acc10 == new10, 1.0, tl.exp2(tl.minimum(acc10 * rate10, shift10) - shift10))
        # exp
        v11 = tl.exp2(tl.fma(v9, rate10[:, None], -shift10[:, None]))
        # sum_1
        acc12 = acc12 * scale10
        part12 = tl.sum(v11, axis=1)
        acc12 = acc12 + part12
        # arg2_1
        arg2_1_13 = tl.load(arg2_1_ptr + (k_idx[:, None] * 32 + m_idx * 3072 + p_idx[None, :]))
        # bmm_1
        acc15 = acc15 * scale10[:, None]
        op14 = v11.to(tl.float16)
        acc15 = tl.dot(op14, arg2_1_13, acc15)
        acc10 = new10
    # bmm_1
    v16 = (acc15 * (1.0 / acc12)[:, None])
    tl.store(view_5_ptr + (m_idx * 3072 + n_idx[:, None] * 32 + p_idx[None, :]), v16.to(tl.float16))
