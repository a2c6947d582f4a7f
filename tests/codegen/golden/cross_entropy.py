import triton
import triton.language as tl


@triton.jit
def nan_max(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def natural_exp(x):
    return tl.exp2(x * 1.4426950408889634)


@triton.jit
def cross_entropy(arg0_1_ptr, arg1_1_ptr, where_1_ptr, SIZE_M: tl.constexpr, SIZE_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, NUM_STAGES: tl.constexpr):
    tile = tl.program_id(0)
    m_tile = tile
    m_start = m_tile * BLOCK_M
    m_idx = m_start
    acc7 = tl.full([], float('-inf'), tl.float32)
    acc10 = tl.full([BLOCK_K], 0.0, tl.float32)
    k_high = SIZE_K
    k_cut = tl.maximum(0, tl.minimum(k_high, SIZE_K // BLOCK_K * BLOCK_K))
    for k_start in tl.range(0, k_cut, BLOCK_K, num_stages=NUM_STAGES):
        k_idx = k_start + tl.arange(0, BLOCK_K)
        # arg0_1
        arg0_1_6 = tl.load(arg0_1_ptr + (k_idx + m_idx * 500))
        v6 = arg0_1_6.to(tl.float32)
        # amax
        part7 = tl.reduce(v6, 0, nan_max)
        new7 = tl.maximum(acc7, part7, propagate_nan=tl.PropagateNan.ALL)
        safe7 = tl.where(new7 == float('-inf'), 0.0, new7)
        scale7 = tl.where(acc7 == new7, 1.0, tl.exp2((acc7 - safe7) * 1.4426950408889634))
        # exp
        v9 = natural_exp((v6 - safe7))
        # sum_1
        acc10 = acc10 * scale7
        acc10 = acc10 + v9
        acc7 = new7
    for k_start in tl.range(k_cut, k_high, BLOCK_K, num_stages=NUM_STAGES):
        k_idx = k_start + tl.arange(0, BLOCK_K)
        k_mask = k_idx < SIZE_K
        # arg0_1
        arg0_1_6 = tl.load(arg0_1_ptr + (k_idx + m_idx * 500), mask=k_mask, other=0)
        v6 = arg0_1_6.to(tl.float32)
        # amax
        part7 = tl.reduce(tl.where(k_mask, v6, float('-inf')), 0, nan_max)
        new7 = tl.maximum(acc7, part7, propagate_nan=tl.PropagateNan.ALL)
        safe7 = tl.where(new7 == float('-inf'), 0.0, new7)
        scale7 = tl.where(acc7 == new7, 1.0, tl.exp2((acc7 - safe7) * 1.4426950408889634))
        # exp
        v9 = natural_exp((v6 - safe7))
        # sum_1
        acc10 = acc10 * scale7
        acc10 = acc10 + tl.where(k_mask, v9, 0.0)
        acc7 = new7
    v10 = tl.sum(acc10, axis=0)
    # arg1_1
    arg1_1_0 = tl.load(arg1_1_ptr + (m_idx))
    # ne_1
    v1 = (arg1_1_0 != (-100))
    # where
    v2 = tl.where(v1, arg1_1_0, tl.full([], 0, tl.int64))
    v3 = tl.where((v2 < 0), (v2 + 500), v2)
    # arg0_1
    arg0_1_4 = tl.load(arg0_1_ptr + (m_idx * 500 + v3))
    v4 = arg0_1_4.to(tl.float32)
    # _to_copy
    # sub
    v8 = (v4 - acc7)
    # log
    v11 = tl.log(v10)
    # sub_1
    v12 = (v8 - v11)
    # _to_copy_1
    # neg
    v14 = (-v12)
    # where_1
    v15 = tl.where(v1, v14, 0.0)
    tl.store(where_1_ptr + (m_idx), v15.to(tl.float16))
