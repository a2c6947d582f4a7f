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
    acc11 = tl.full([BLOCK_M], float('-inf'), tl.float32)
    acc14 = tl.full([BLOCK_M], 0.0, tl.float32)
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
        # amax
        part11 = tl.reduce(tl.where(l_mask[None, :], acc10, float('-inf')), 1, nan_max)
        new11 = tl.maximum(acc11, part11, propagate_nan=tl.PropagateNan.ALL)
        safe11 = tl.where(new11 == float('-inf'), 0.0, new11)
        scale11 = tl.where(acc11 == new11, 1.0, tl.exp2((acc11 - safe11) * 1.4426950408889634))
        # exp
        v13 = natural_exp((acc10 - safe11[:, None]))
        # sum_1
        acc14 = acc14 * scale11
        part14 = tl.sum(tl.where(l_mask[None, :], v13, 0.0), axis=1)
        acc14 = acc14 + part14
        acc11 = new11
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
    v12 = (v7 - acc11)
    # log
    v15 = tl.log(acc14)
    # sub_1
    v16 = (v12 - v15)
    # _to_copy_1
    # neg
    v18 = (-v16)
    # scalar_tensor_1
    v19 = tl.full([], 0.0, tl.float32)
    # where_1
    v20 = tl.where(v1, v18, v19)
    tl.store(where_1_ptr + (m_idx), v20.to(tl.float16), mask=m_mask)
