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
    acc9 = tl.full([], float('-inf'), tl.float32)
    acc13 = tl.full([], 0.0, tl.float32)
    for k_start in tl.range(0, SIZE_K, BLOCK_K, num_stages=NUM_STAGES):
        k_idx = k_start + tl.arange(0, BLOCK_K)
        k_mask = k_idx < SIZE_K
        # arg0_1
        arg0_1_7 = tl.load(arg0_1_ptr + (k_idx + m_idx * 500), mask=k_mask, other=0)
        v7 = arg0_1_7.to(tl.float32)
        # _to_copy
        # amax
        part9 = tl.reduce(tl.where(k_mask, v7, float('-inf')), 0, nan_max)
        new9 = tl.maximum(acc9, part9, propagate_nan=tl.PropagateNan.ALL)
        safe9 = tl.where(new9 == float('-inf'), 0.0, new9)
        scale9 = tl.where(acc9 == new9, 1.0, natural_exp(acc9 - safe9))
        # sub
        v11 = (v7 - safe9)
        # exp
        v12 = natural_exp(v11)
        # sum_1
        acc13 = acc13 * scale9
        part13 = tl.sum(tl.where(k_mask, v12, 0.0), axis=0)
        acc13 = acc13 + part13
        acc9 = new9
    # arg1_1
    arg1_1_0 = tl.load(arg1_1_ptr + (m_idx))
    # ne_1
    v1 = (arg1_1_0 != (-100))
    # scalar_tensor
    v2 = tl.full([], 0, tl.int64)
    # where
    v3 = tl.where(v1, arg1_1_0, v2)
    v4 = tl.where((v3 < 0), (v3 + 500), v3)
    # arg0_1
    arg0_1_5 = tl.load(arg0_1_ptr + (m_idx * 500 + v4))
    v5 = arg0_1_5.to(tl.float32)
    # _to_copy
    # sub
    v10 = (v5 - acc9)
    # log
    v14 = tl.log(acc13)
    # sub_1
    v15 = (v10 - v14)
    # _to_copy_1
    # neg
    v17 = (-v15)
    # scalar_tensor_1
    v18 = tl.full([], 0.0, tl.float32)
    # where_1
    v19 = tl.where(v1, v17, v18)
    tl.store(where_1_ptr + (m_idx), v19.to(tl.float16))
