import triton
import triton.language as tl


@triton.jit
def layer_norm_backward(arg4_1_ptr, arg3_1_ptr, arg0_1_ptr, arg1_1_ptr, arg2_1_ptr, _to_copy_3_ptr, arrivals, parts2, parts11, _to_copy_5_ptr, _to_copy_4_ptr, SIZE_M: tl.constexpr, SIZE_N: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PART_M: tl.constexpr, NUM_STAGES: tl.constexpr):
    tile = tl.program_id(0)
    m_part = tile % 4
    rest_m = tile // 4
    n_start = 0
    n_idx = n_start + tl.arange(0, BLOCK_N)
    n_mask = n_idx < SIZE_N
    # arg4_1
    arg4_1_13 = tl.load(arg4_1_ptr + (n_idx), mask=n_mask, other=0)
    v13 = arg4_1_13.to(tl.float32)
    # _to_copy_2
    acc2 = tl.full([BLOCK_M, BLOCK_N], 0.0, tl.float32)
    acc11 = tl.full([BLOCK_M, BLOCK_N], 0.0, tl.float32)
    for m_start in tl.range(m_part * PART_M, tl.minimum(m_part * PART_M + PART_M, SIZE_M), BLOCK_M, num_stages=NUM_STAGES):
        m_idx = m_start + tl.arange(0, BLOCK_M)
        m_mask = m_idx < SIZE_M
        # arg3_1
        arg3_1_0 = tl.load(arg3_1_ptr + (m_idx[:, None] * 60 + n_idx[None, :]), mask=m_mask[:, None] & n_mask[None, :], other=0)
        v0 = arg3_1_0.to(tl.float32)
        # _to_copy_1
        # sum_2
        acc2 = acc2 + tl.where(m_mask[:, None], v0, 0.0)
        # arg0_1
        arg0_1_4 = tl.load(arg0_1_ptr + (m_idx[:, None] * 60 + n_idx[None, :]), mask=m_mask[:, None] & n_mask[None, :], other=0)
        v4 = arg0_1_4.to(tl.float32)
        # _to_copy
        # arg1_1
        arg1_1_6 = tl.load(arg1_1_ptr + (m_idx), mask=m_mask, other=0)
        # sub
        v7 = (v4 - arg1_1_6[:, None])
        # arg2_1
        arg2_1_8 = tl.load(arg2_1_ptr + (m_idx), mask=m_mask, other=0)
        # mul
        v9 = (v7 * arg2_1_8[:, None])
        # mul_5
        v10 = (v0 * v9)
        # sum_1
        acc11 = acc11 + tl.where(m_mask[:, None], v10, 0.0)
        # mul_1
        v15 = (v0 * v13[None, :])
        # mean_1_sum
        v16 = tl.sum(tl.where(n_mask[None, :], v15, 0.0), axis=1)
        # mean_1
        v17 = (v16 * 0.016666666666666666)
        # sub_1
        v18 = (v15 - v17[:, None])
        # mul_2
        v19 = (v15 * v9)
        # mean_sum
        v20 = tl.sum(tl.where(n_mask[None, :], v19, 0.0), axis=1)
        # mean
        v21 = (v20 * 0.016666666666666666)
        # mul_3
        v22 = (v9 * v21[:, None])
        # sub_2
        v23 = (v18 - v22)
        # mul_4
        v24 = (v23 * arg2_1_8[:, None])
        # _to_copy_3
        tl.store(_to_copy_3_ptr + (m_idx[:, None] * 60 + n_idx[None, :]), v24.to(tl.float16), mask=m_mask[:, None] & n_mask[None, :])
    v2 = tl.sum(acc2, axis=0)
    v11 = tl.sum(acc11, axis=0)
    # the program that comes last combines the parts of m
    tl.store(parts2 + (rest_m * 4 + m_part) * 64 + tl.arange(0, BLOCK_N), v2)
    tl.store(parts11 + (rest_m * 4 + m_part) * 64 + tl.arange(0, BLOCK_N), v11)
    tl.debug_barrier()
    if tl.atomic_add(arrivals + rest_m, 1, sem="acq_rel") == 3:
        tl.store(arrivals + rest_m, 0)
        all2 = tl.full([BLOCK_N], 0.0, tl.float32)
        for other in tl.range(0, 4):
            all2 = all2 + tl.load(parts2 + (rest_m * 4 + other) * 64 + tl.arange(0, BLOCK_N), cache_modifier=".cg")
        all11 = tl.full([BLOCK_N], 0.0, tl.float32)
        for other in tl.range(0, 4):
            all11 = all11 + tl.load(parts11 + (rest_m * 4 + other) * 64 + tl.arange(0, BLOCK_N), cache_modifier=".cg")
        # _to_copy_5
        tl.store(_to_copy_5_ptr + (n_idx), all2.to(tl.float16), mask=n_mask)
        # _to_copy_4
        tl.store(_to_copy_4_ptr + (n_idx), all11.to(tl.float16), mask=n_mask)
