import triton
import triton.language as tl


@triton.jit
def natural_exp(x):
    return tl.exp2(x * 1.4426950408889634)


@triton.jit
def softmax(arg0_1_ptr, _to_copy_1_ptr, SIZE_M: tl.constexpr, SIZE_N: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, NUM_STAGES: tl.constexpr):
    tile = tl.program_id(0)
    m_tile = tile
    m_start = m_tile * BLOCK_M
    m_idx = m_start + tl.arange(0, BLOCK_M)
    acc1 = tl.full([BLOCK_M], float('-inf'), tl.float32)
    acc3 = tl.full([BLOCK_M], 0.0, tl.float32)
    for n_start in tl.range(0, 384, BLOCK_N, num_stages=NUM_STAGES):
        n_idx = n_start + tl.arange(0, BLOCK_N)
        n_mask = n_idx < SIZE_N
        # arg0_1
        arg0_1_0 = tl.load(arg0_1_ptr + (m_idx[:, None] * 500 + n_idx[None, :]), mask=n_mask[None, :], other=0)
        v0 = arg0_1_0.to(tl.float32)
        # amax
        part1 = tl.max(tl.where(n_mask[None, :], v0, float('-inf')), axis=1)
        new1 = tl.maximum(acc1, part1)
        safe1 = tl.where(new1 == float('-inf'), 0.0, new1)
        scale1 = tl.where(acc1 == new1, 1.0, tl.exp2((acc1 - safe1) * 1.4426950408889634))
        # exp
        v2 = natural_exp((v0 - safe1[:, None]))
        # sum_1
        acc3 = acc3 * scale1
        part3 = tl.sum(tl.where(n_mask[None, :], v2, 0.0), axis=1)
        acc3 = acc3 + part3
        acc1 = new1
    n_start = tl.full([], 384, tl.int32)
    n_idx = n_start + tl.arange(0, BLOCK_N)
    n_mask = n_idx < SIZE_N
    # arg0_1
    arg0_1_0 = tl.load(arg0_1_ptr + (m_idx[:, None] * 500 + n_idx[None, :]), mask=n_mask[None, :], other=0)
    v0 = arg0_1_0.to(tl.float32)
    # amax
    part1 = tl.max(tl.where(n_mask[None, :], v0, float('-inf')), axis=1)
    new1 = tl.maximum(acc1, part1)
    safe1 = tl.where(new1 == float('-inf'), 0.0, new1)
    scale1 = tl.where(acc1 == new1, 1.0, tl.exp2((acc1 - safe1) * 1.4426950408889634))
    # exp
    v2 = natural_exp((v0 - safe1[:, None]))
    # sum_1
    acc3 = acc3 * scale1
    part3 = tl.sum(tl.where(n_mask[None, :], v2, 0.0), axis=1)
    acc3 = acc3 + part3
    acc1 = new1
    n_start = tl.full([], 384, tl.int32)
    n_idx = n_start + tl.arange(0, BLOCK_N)
    n_mask = n_idx < SIZE_N
    # arg0_1
    v0 = arg0_1_0.to(tl.float32)
    # exp
    v2 = natural_exp((v0 - acc1[:, None]))
    # div
    v4 = (v2 * (1.0 / acc3)[:, None])
    # _to_copy_1
    tl.store(_to_copy_1_ptr + (m_idx[:, None] * 500 + n_idx[None, :]), v4.to(tl.float16), mask=n_mask[None, :])
    for n_turn in tl.range(0, 384, BLOCK_N, num_stages=NUM_STAGES):
        n_start = 256 - n_turn
        n_idx = n_start + tl.arange(0, BLOCK_N)
        n_mask = n_idx < SIZE_N
        # arg0_1
        arg0_1_0 = tl.load(arg0_1_ptr + (m_idx[:, None] * 500 + n_idx[None, :]), mask=n_mask[None, :], other=0)
        v0 = arg0_1_0.to(tl.float32)
        # exp
        v2 = natural_exp((v0 - acc1[:, None]))
        # div
        v4 = (v2 * (1.0 / acc3)[:, None])
        # _to_copy_1
        tl.store(_to_copy_1_ptr + (m_idx[:, None] * 500 + n_idx[None, :]), v4.to(tl.float16), mask=n_mask[None, :])
