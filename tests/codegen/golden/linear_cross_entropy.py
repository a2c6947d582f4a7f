import triton
import triton.language as tl


@triton.jit
def nan_max(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def natural_exp(x):
    return tl.exp2(x * 1.4426950408889634)


@triton.jit
def linear_cross_entropy(arg0_1_ptr, arg1_1_ptr, arg2_1_ptr, where_1_ptr, SIZE_M: tl.constexpr, SIZE_K: tl.constexpr, SIZE_L: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_L: tl.constexpr, NUM_STAGES: tl.constexpr):
    tile = tl.program_id(0)
    m_tile = tile
    m_start = m_tile * BLOCK_M
    m_idx = m_start + tl.arange(0, BLOCK_M)
    m_mask = m_idx < SIZE_M
    acc12 = tl.full([BLOCK_M], float('-inf'), tl.float32)
    acc16 = tl.full([BLOCK_M], 0.0, tl.float32)
    for l_start in tl.range(0, SIZE_L, BLOCK_L, num_stages=NUM_STAGES):
        l_idx = l_start + tl.arange(0, BLOCK_L)
        l_mask = l_idx < SIZE_L
        acc10 = tl.full([BLOCK_M, BLOCK_L], 0, tl.float32)
        for k_start in tl.range(0, SIZE_K, BLOCK_K, num_stages=NUM_STAGES):
            k_idx = k_start + tl.arange(0, BLOCK_K)
            # arg0_1
            arg0_1_5 = tl.load(arg0_1_ptr + (k_idx[None, :] + m_idx[:, None] * 48), mask=m_mask[:, None], other=0)
            # arg1_1
            arg1_1_9 = tl.load(arg1_1_ptr + (k_idx[:, None] + l_idx[None, :] * 48), mask=l_mask[None, :], other=0)
            # mm
            acc10 = tl.dot(arg0_1_5, arg1_1_9, acc10)
        # _to_copy
        # amax
        part12 = tl.reduce(tl.where(l_mask[None, :], acc10, float('-inf')), 1, nan_max)
        new12 = tl.maximum(acc12, part12, propagate_nan=tl.PropagateNan.ALL)
        safe12 = tl.where(new12 == float('-inf'), 0.0, new12)
        scale12 = tl.where(acc12 == new12, 1.0, natural_exp(acc12 - safe12))
        # sub
        v14 = (acc10 - safe12[:, None])
        # exp
        v15 = natural_exp(v14)
        # sum_1
        acc16 = acc16 * scale12
        part16 = tl.sum(tl.where(l_mask[None, :], v15, 0.0), axis=1)
        acc16 = acc16 + part16
        acc12 = new12
    # arg2_1
    arg2_1_0 = tl.load(arg2_1_ptr + (m_idx), mask=m_mask, other=0)
    # ne_1
    v1 = (arg2_1_0 != (-100))
    # scalar_tensor
    v2 = tl.full([], 0, tl.int64)
    # where
    v3 = tl.where(v1, arg2_1_0, v2)
    v4 = tl.where((v3 < 0), (v3 + 100), v3)
    acc7 = tl.full([BLOCK_M, BLOCK_K], 0, tl.float32)
    for k_start in tl.range(0, SIZE_K, BLOCK_K, num_stages=NUM_STAGES):
        k_idx = k_start + tl.arange(0, BLOCK_K)
        # arg0_1
        arg0_1_5 = tl.load(arg0_1_ptr + (k_idx[None, :] + m_idx[:, None] * 48), mask=m_mask[:, None], other=0)
        # arg1_1
        arg1_1_6 = tl.load(arg1_1_ptr + (k_idx[None, :] + v4[:, None] * 48), mask=m_mask[:, None], other=0)
        # mm
        acc7 = acc7 + arg0_1_5.to(tl.float32) * arg1_1_6.to(tl.float32)
    v7 = tl.sum(acc7, axis=1)
    # _to_copy
    # sub
    v13 = (v7 - acc12)
    # log
    v17 = tl.log(acc16)
    # sub_1
    v18 = (v13 - v17)
    # _to_copy_1
    # neg
    v20 = (-v18)
    # scalar_tensor_1
    v21 = tl.full([], 0.0, tl.float32)
    # where_1
    v22 = tl.where(v1, v20, v21)
    tl.store(where_1_ptr + (m_idx), v22.to(tl.float16), mask=m_mask)
