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
    acc12 = tl.full([], 0.0, tl.float32)
    for k_start in tl.range(0, SIZE_K, BLOCK_K, num_stages=NUM_STAGES):
        k_idx = k_start + tl.arange(0, BLOCK_K)
        k_mask = k_idx < SIZE_K
        # arg0_1
        arg0_1_6 = tl.load(arg0_1_ptr + (k_idx + m_idx * 500), mask=k_mask, other=0)
        v6 = arg0_1_6.to(tl.float32)
        # _to_copy
        # amax
        part8 = tl.reduce(tl.where(k_mask, v6, float('-inf')), 0, nan_max)
        new8 = tl.maximum(acc8, part8, propagate_nan=tl.PropagateNan.ALL)
        safe8 = tl.where(new8 == float('-inf'), 0.0, new8)
        scale8 = tl.where(acc8 == new8, 1.0, natural_exp(acc8 - safe8))
        # sub
        v10 = (v6 - safe8)
        # exp
        v11 = natural_exp(v10)
        # sum_1
        acc12 = acc12 * scale8
        part12 = tl.sum(tl.where(k_mask, v11, 0.0), axis=0)
        acc12 = acc12 + part12
        acc8 = new8
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
    v9 = (v4 - acc8)
    # log
    v13 = tl.log(acc12)
    # sub_1
    v14 = (v9 - v13)
    # _to_copy_1
    # neg
    v16 = (-v14)
    # where_1
    v17 = tl.where(v1, v16, 0.0)
    tl.store(where_1_ptr + (m_idx), v17.to(tl.float16))
