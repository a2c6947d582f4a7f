import triton
import triton.language as tl


@triton.jit
def attention_decode(arg2_1_ptr, arg0_1_ptr, arg1_1_ptr, arg3_1_ptr, arrivals, parts7, parts9, parts12, view_8_ptr, SIZE_M: tl.constexpr, SIZE_N: tl.constexpr, SIZE_P: tl.constexpr, SIZE_Q: tl.constexpr, SIZE_K: tl.constexpr, SIZE_L: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_L: tl.constexpr, PART_K: tl.constexpr, NUM_STAGES: tl.constexpr):
    tile = tl.program_id(0)
    k_part = tile % 3
    rest_k = tile // 3
    n_tile = 0
    p_tile = rest_k % 2
    rest_p = rest_k // 2
    m_tile = rest_p
    m_start = m_tile * BLOCK_M
    m_idx = m_start
    n_start = n_tile * BLOCK_N
    n_idx = n_start + tl.arange(0, BLOCK_N)
    n_mask = n_idx < SIZE_N
    p_start = p_tile * BLOCK_P
    p_idx = p_start
    q_start = 0
    q_idx = q_start + tl.arange(0, BLOCK_Q)
    l_start = 0
    l_idx = l_start + tl.arange(0, BLOCK_L)
    # arg2_1
    arg2_1_1 = tl.load(arg2_1_ptr + (m_idx))
    # arg0_1
    arg0_1_3 = tl.load(arg0_1_ptr + (l_idx[None, :] + m_idx * 192 + n_idx[:, None] * 32 + p_idx * 96), mask=n_mask[:, None], other=0)
    acc7 = tl.full([BLOCK_N], float('-inf'), tl.float32)
    acc9 = tl.full([BLOCK_N], 0.0, tl.float32)
    acc12 = tl.full([BLOCK_N, BLOCK_Q], 0, tl.float32)
    for k_start in tl.range(k_part * PART_K, tl.minimum(k_part * PART_K + PART_K, SIZE_K), BLOCK_K, num_stages=NUM_STAGES):
        k_idx = k_start + tl.arange(0, BLOCK_K)
        k_mask = k_idx < SIZE_K
        # arange
        v0 = k_idx
        # ge
        v2 = (v0.to(tl.int64) >= arg2_1_1)
        # arg1_1
        arg1_1_4 = tl.load(arg1_1_ptr + (k_idx[None, :] * 32 + l_idx[:, None] + m_idx * 6400 + p_idx * 3200), mask=k_mask[None, :], other=0)
        # bmm
        v5 = tl.dot(arg0_1_3, arg1_1_4)
        # masked_fill
        v6 = tl.where(v2[None, :], float("-inf"), v5)
        # amax
        part7 = tl.max(tl.where(k_mask[None, :], v6, float('-inf')), axis=1)
        new7 = tl.maximum(acc7, part7)
        safe7 = tl.where(new7 == float('-inf'), 0.0, new7)
        rate7 = tl.where(tl.abs(safe7) < 526272083.4793858, 0.25503486164919736, 0.25)
        shift7 = safe7 * rate7
        scale7 = tl.where(acc7 == new7, 1.0, tl.exp2(tl.minimum(acc7 * rate7, shift7) - shift7))
        # exp
        v8 = tl.exp2(tl.fma(v6, rate7[:, None], -shift7[:, None]))
        # sum_1
        acc9 = acc9 * scale7
        part9 = tl.sum(tl.where(k_mask[None, :], v8, 0.0), axis=1)
        acc9 = acc9 + part9
        # arg3_1
        arg3_1_10 = tl.load(arg3_1_ptr + (k_idx[:, None] * 32 + m_idx * 6400 + p_idx * 3200 + q_idx[None, :]), mask=k_mask[:, None], other=0)
        # bmm_1
        acc12 = acc12 * scale7[:, None]
        op11 = tl.where(k_mask[None, :], v8, 0.0).to(tl.float16)
        acc12 = tl.dot(op11, arg3_1_10, acc12)
        acc7 = new7
    # the program that comes last combines the parts of k
    tl.store(parts7 + (rest_k * 3 + k_part) * 4 + tl.arange(0, BLOCK_N), acc7)
    tl.store(parts9 + (rest_k * 3 + k_part) * 4 + tl.arange(0, BLOCK_N), acc9)
    tl.store(parts12 + (rest_k * 3 + k_part) * 128 + tl.arange(0, BLOCK_N)[:, None] * 32 + tl.arange(0, BLOCK_Q)[None, :], acc12)
    tl.debug_barrier()
    if tl.atomic_add(arrivals + rest_k, 1, sem="acq_rel") == 2:
        tl.store(arrivals + rest_k, 0)
        all7 = tl.full([BLOCK_N], float('-inf'), tl.float32)
        for other in tl.range(0, 3):
            all7 = tl.maximum(all7, tl.load(parts7 + (rest_k * 3 + other) * 4 + tl.arange(0, BLOCK_N), cache_modifier=".cg"))
        all9 = tl.full([BLOCK_N], 0.0, tl.float32)
        for other in tl.range(0, 3):
            part = tl.load(parts7 + (rest_k * 3 + other) * 4 + tl.arange(0, BLOCK_N), cache_modifier=".cg")
            scale = tl.where(part == all7, 1.0, tl.exp2((part - all7) * 0.25503486164919736))
            all9 = all9 + tl.load(parts9 + (rest_k * 3 + other) * 4 + tl.arange(0, BLOCK_N), cache_modifier=".cg") * scale
        all12 = tl.full([BLOCK_N, BLOCK_Q], 0.0, tl.float32)
        for other in tl.range(0, 3):
            part = tl.load(parts7 + (rest_k * 3 + other) * 4 + tl.arange(0, BLOCK_N), cache_modifier=".cg")
            scale = tl.where(part == all7, 1.0, tl.exp2((part - all7) * 0.25503486164919736))
            all12 = all12 + tl.load(parts12 + (rest_k * 3 + other) * 128 + tl.arange(0, BLOCK_N)[:, None] * 32 + tl.arange(0, BLOCK_Q)[None, :], cache_modifier=".cg") * scale[:, None]
        # bmm_1
        v13 = (all12 * (1.0 / all9)[:, None])
        tl.store(view_8_ptr + (m_idx * 192 + n_idx[:, None] * 32 + p_idx * 96 + q_idx[None, :]), v13.to(tl.float16), mask=n_mask[:, None])
