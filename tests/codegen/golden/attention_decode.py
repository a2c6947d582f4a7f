import triton
import triton.language as tl


@triton.jit
def attention_decode(arg2_1_ptr, arg0_1_ptr, arg1_1_ptr, arg3_1_ptr, arrivals, parts10, parts13, parts16, view_8_ptr, SIZE_M: tl.constexpr, SIZE_N: tl.constexpr, SIZE_P: tl.constexpr, SIZE_Q: tl.constexpr, SIZE_K: tl.constexpr, SIZE_L: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_L: tl.constexpr, PART_K: tl.constexpr, NUM_STAGES: tl.constexpr):
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
    arg2_1_2 = tl.load(arg2_1_ptr + (m_idx))
    # arg0_1
    arg0_1_4 = tl.load(arg0_1_ptr + (l_idx[None, :] + m_idx * 192 + n_idx[:, None] * 32 + p_idx * 96), mask=n_mask[:, None], other=0)
    acc10 = tl.full([BLOCK_N], float('-inf'), tl.float32)
    acc13 = tl.full([BLOCK_N], 0.0, tl.float32)
    acc16 = tl.full([BLOCK_N, BLOCK_Q], 0, tl.float32)
    for k_start in tl.range(k_part * PART_K, tl.minimum(k_part * PART_K + PART_K, SIZE_K), BLOCK_K, num_stages=NUM_STAGES):
        k_idx = k_start + tl.arange(0, BLOCK_K)
        k_mask = k_idx < SIZE_K
        v0 = (k_idx).to(tl.int64)
        # arange
        v1 = ((v0 * (1)) + (0))
        # ge
        v3 = (v1 >= arg2_1_2)
        # arg1_1
        arg1_1_5 = tl.load(arg1_1_ptr + (k_idx[None, :] * 32 + l_idx[:, None] + m_idx * 6400 + p_idx * 3200), mask=k_mask[None, :], other=0)
        # bmm
        v6 = tl.dot(arg0_1_4, arg1_1_5)
        # div
        v7 = (v6 / (5.656854249492381))
        # masked_fill
        v8 = tl.where(v3[None, :], tl.full([], float("-inf"), tl.float32), v7)
        # _to_copy
        v9 = v8
        # amax
        part10 = tl.max(tl.where(k_mask[None, :], v9, float('-inf')), axis=1)
        new10 = tl.maximum(acc10, part10)
        safe10 = tl.where(new10 == float('-inf'), 0.0, new10)
        scale10 = tl.where(acc10 == new10, 1.0, tl.exp(acc10 - safe10))
        # sub
        v11 = (v9 - safe10[:, None])
        # exp
        v12 = tl.exp(v11)
        # sum_1
        acc13 = acc13 * scale10
        part13 = tl.sum(tl.where(k_mask[None, :], v12, 0.0), axis=1)
        acc13 = acc13 + part13
        v15 = v12
        # arg3_1
        arg3_1_14 = tl.load(arg3_1_ptr + (k_idx[:, None] * 32 + m_idx * 6400 + p_idx * 3200 + q_idx[None, :]), mask=k_mask[:, None], other=0)
        # bmm_1
        acc16 = acc16 * scale10[:, None]
        op15 = tl.where(k_mask[None, :], v15, 0.0).to(tl.float16)
        acc16 = tl.dot(op15, arg3_1_14, acc16)
        acc10 = new10
    # the program that comes last combines the parts of k
    tl.store(parts10 + (rest_k * 3 + k_part) * 4 + tl.arange(0, BLOCK_N), acc10)
    tl.store(parts13 + (rest_k * 3 + k_part) * 4 + tl.arange(0, BLOCK_N), acc13)
    tl.store(parts16 + (rest_k * 3 + k_part) * 128 + tl.arange(0, BLOCK_N)[:, None] * 32 + tl.arange(0, BLOCK_Q)[None, :], acc16)
    tl.debug_barrier()
    if tl.atomic_add(arrivals + rest_k, 1, sem="acq_rel") == 2:
        tl.store(arrivals + rest_k, 0)
        all10 = tl.full([BLOCK_N], float('-inf'), tl.float32)
        for other in tl.range(0, 3):
            all10 = tl.maximum(all10, tl.load(parts10 + (rest_k * 3 + other) * 4 + tl.arange(0, BLOCK_N), cache_modifier=".cg"))
        all13 = tl.full([BLOCK_N], 0.0, tl.float32)
        for other in tl.range(0, 3):
            part = tl.load(parts10 + (rest_k * 3 + other) * 4 + tl.arange(0, BLOCK_N), cache_modifier=".cg")
            scale = tl.where(part == all10, 1.0, tl.exp(part - all10))
            all13 = all13 + tl.load(parts13 + (rest_k * 3 + other) * 4 + tl.arange(0, BLOCK_N), cache_modifier=".cg") * scale
        all16 = tl.full([BLOCK_N, BLOCK_Q], 0.0, tl.float32)
        for other in tl.range(0, 3):
            part = tl.load(parts10 + (rest_k * 3 + other) * 4 + tl.arange(0, BLOCK_N), cache_modifier=".cg")
            scale = tl.where(part == all10, 1.0, tl.exp(part - all10))
            all16 = all16 + tl.load(parts16 + (rest_k * 3 + other) * 128 + tl.arange(0, BLOCK_N)[:, None] * 32 + tl.arange(0, BLOCK_Q)[None, :], cache_modifier=".cg") * scale[:, None]
        # bmm_1
        v17 = (all16 * (1.0 / all13)[:, None])
        tl.store(view_8_ptr + (m_idx * 192 + n_idx[:, None] * 32 + p_idx * 96 + q_idx[None, :]), v17.to(tl.float16), mask=n_mask[:, None])
