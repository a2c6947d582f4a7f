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
    # arange
    v1 = n_idx
    # arg1_1
    arg1_1_3 = tl.load(arg1_1_ptr + (l_idx[None, :] + m_idx * 3072 + n_idx[:, None] * 32))
    acc7 = tl.full([BLOCK_N], float('-inf'), tl.float32)
    acc9 = tl.full([BLOCK_N], 0.0, tl.float32)
    acc12 = tl.full([BLOCK_N, BLOCK_P], 0, tl.float32)
    k_high = tl.minimum(SIZE_K, tl.maximum(0, 32 + n_start))
    k_cut = tl.maximum(0, tl.minimum(k_high, (1 + n_start) // BLOCK_K * BLOCK_K))
    for k_start in tl.range(0, k_cut, BLOCK_K, num_stages=NUM_STAGES):
        k_idx = k_start + tl.arange(0, BLOCK_K)
        # arg0_1
        arg0_1_4 = tl.load(arg0_1_ptr + (k_idx[None, :] * 32 + l_idx[:, None] + m_idx * 3072))
        # bmm
        v5 = tl.dot(arg1_1_3, arg0_1_4)
        # masked_fill
        # amax
        part7 = tl.max(v5, axis=1)
        new7 = tl.maximum(acc7, part7)
        safe7 = tl.where(new7 == float('-inf'), 0.0, new7)
        rate7 = tl.where(tl.abs(safe7) < 526272083.4793858, 0.25503486164919736, 0.25)
        shift7 = safe7 * rate7
        scale7 = tl.where(acc7 == new7, 1.0, tl.exp2(tl.minimum(acc7 * rate7, shift7) - shift7))
        # exp
        v8 = tl.exp2(tl.fma(v5, rate7[:, None], -shift7[:, None]))
        # sum_1
        acc9 = acc9 * scale7
        part9 = tl.sum(v8, axis=1)
        acc9 = acc9 + part9
        # arg2_1
        arg2_1_10 = tl.load(arg2_1_ptr + (k_idx[:, None] * 32 + m_idx * 3072 + p_idx[None, :]))
        # bmm_1
        acc12 = acc12 * scale7[:, None]
        op11 = v8.to(tl.float16)
        acc12 = tl.dot(op11, arg2_1_10, acc12)
        acc7 = new7
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
        # masked_fill
        v6 = tl.where(v2, float("-inf"), v5)
        # amax
        part7 = tl.max(v6, axis=1)
        new7 = tl.maximum(acc7, part7)
        safe7 = tl.where(new7 == float('-inf'), 0.0, new7)
        rate7 = tl.where(tl.abs(safe7) < 526272083.4793858, 0.25503486164919736, 0.25)
        shift7 = safe7 * rate7
        scale7 = tl.where(acc7 == new7, 1.0, tl.exp2(tl.minimum(acc7 * rate7, shift7) - shift7))
        # exp
        v8 = tl.exp2(tl.fma(v6, rate7[:, None], -shift7[:, None]))
        # sum_1
        acc9 = acc9 * scale7
        part9 = tl.sum(v8, axis=1)
        acc9 = acc9 + part9
        # arg2_1
        arg2_1_10 = tl.load(arg2_1_ptr + (k_idx[:, None] * 32 + m_idx * 3072 + p_idx[None, :]))
        # bmm_1
        acc12 = acc12 * scale7[:, None]
        op11 = v8.to(tl.float16)
        acc12 = tl.dot(op11, arg2_1_10, acc12)
        acc7 = new7
    # bmm_1
    v13 = (acc12 * (1.0 / acc9)[:, None])
    tl.store(view_5_ptr + (m_idx * 3072 + n_idx[:, None] * 32 + p_idx[None, :]), v13.to(tl.float16))
