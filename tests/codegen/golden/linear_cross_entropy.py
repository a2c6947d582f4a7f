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
    acc10 = tl.full([BLOCK_M], float('-inf'), tl.float32)
    acc13 = tl.full([BLOCK_M], 0.0, tl.float32)
    for l_start in tl.range(0, SIZE_L, BLOCK_L, num_stages=NUM_STAGES):
        l_idx = l_start + tl.arange(0, BLOCK_L)
        l_mask = l_idx < SIZE_L
        acc9 = tl.full([BLOCK_M, BLOCK_L], 0, tl.float32)
        for k_start in tl.range(0, SIZE_K, BLOCK_K, num_stages=NUM_STAGES):
            k_idx = k_start + tl.arange(0, BLOCK_K)
            # arg0_1
            arg0_1_4 = tl.load(arg0_1_ptr + (k_idx[None, :] + m_idx[:, None] * 48), mask=m_mask[:, None], other=0)
            # arg1_1
            arg1_1_8 = tl.load(arg1_1_ptr + (k_idx[:, None] + l_idx[None, :] * 48), mask=l_mask[None, :], other=0)
            # mm
            acc9 = tl.dot(arg0_1_4, arg1_1_8, acc9)
        # amax
        part10 = tl.reduce(tl.where(l_mask[None, :], acc9, float('-inf')), 1, nan_max)
        new10 = tl.maximum(acc10, part10, propagate_nan=tl.PropagateNan.ALL)
        safe10 = tl.where(new10 == float('-inf'), 0.0, new10)
        scale10 = tl.where(acc10 == new10, 1.0, tl.exp2((acc10 - safe10) * 1.4426950408889634))
        # exp
        v12 = natural_exp((acc9 - safe10[:, None]))
        # sum_1
        acc13 = acc13 * scale10
        part13 = tl.sum(tl.where(l_mask[None, :], v12, 0.0), axis=1)
        acc13 = acc13 + part13
        acc10 = new10
    # arg2_1
    arg2_1_0 = tl.load(arg2_1_ptr + (m_idx), mask=m_mask, other=0)
    # ne_1
    v1 = (arg2_1_0 != (-100))
    # where
    v2 = tl.where(v1, arg2_1_0, tl.full([], 0, tl.int64))
    v3 = tl.where((v2 < 0), (v2 + 100), v2)
    acc6 = tl.full([BLOCK_M, BLOCK_K], 0, tl.float32)
    for k_start in tl.range(0, SIZE_K, BLOCK_K, num_stages=NUM_STAGES):
        k_idx = k_start + tl.arange(0, BLOCK_K)
        # arg0_1
        arg0_1_4 = tl.load(arg0_1_ptr + (k_idx[None, :] + m_idx[:, None] * 48), mask=m_mask[:, None], other=0)
        # arg1_1
        arg1_1_5 = tl.load(arg1_1_ptr + (k_idx[None, :] + v3[:, None] * 48), mask=m_mask[:, None], other=0)
        # mm
        acc6 = acc6 + arg0_1_4.to(tl.float32) * arg1_1_5.to(tl.float32)
    v6 = tl.sum(acc6, axis=1)
    # _to_copy
    # sub
    v11 = (v6 - acc10)
    # log
    v14 = tl.log(acc13)
    # sub_1
    v15 = (v11 - v14)
    # _to_copy_1
    # neg
    v17 = (-v15)
    # where_1
    v18 = tl.where(v1, v17, 0.0)
    tl.store(where_1_ptr + (m_idx), v18.to(tl.float16), mask=m_mask)
