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
    acc8 = tl.full([], float('-inf'), tl.float32)
    acc11 = tl.full([], 0.0, tl.float32)
    for k_start in tl.range(0, SIZE_K, BLOCK_K, num_stages=NUM_STAGES):
        k_idx = k_start + tl.arange(0, BLOCK_K)
        k_mask = k_idx < SIZE_K
        # arg0_1
        arg0_1_7 = tl.load(arg0_1_ptr + (k_idx + m_idx * 500), mask=k_mask, other=0)
        v7 = arg0_1_7.to(tl.float32)
        # amax
        part8 = tl.reduce(tl.where(k_mask, v7, float('-inf')), 0, nan_max)
        new8 = tl.maximum(acc8, part8, propagate_nan=tl.PropagateNan.ALL)
        safe8 = tl.where(new8 == float('-inf'), 0.0, new8)
        scale8 = tl.where(acc8 == new8, 1.0, tl.exp2((acc8 - safe8) * 1.4426950408889634))
        # exp
        v10 = natural_exp((v7 - safe8))
        # sum_1
        acc11 = acc11 * scale8
        part11 = tl.sum(tl.where(k_mask, v10, 0.0), axis=0)
        acc11 = acc11 + part11
        acc8 = new8
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
    v9 = (v5 - acc8)
    # log
    v12 = tl.log(acc11)
    # sub_1
    v13 = (v9 - v12)
    # _to_copy_1
    # neg
    v15 = (-v13)
    # scalar_tensor_1
    v16 = tl.full([], 0.0, tl.float32)
    # where_1
    v17 = tl.where(v1, v15, v16)
    tl.store(where_1_ptr + (m_idx), v17.to(tl.float16))
