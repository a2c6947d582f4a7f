import triton
import triton.language as tl


@triton.jit
def int4_linear(arg2_1_ptr, arg1_1_ptr, arg0_1_ptr, mm_ptr, SIZE_M: tl.constexpr, SIZE_N: tl.constexpr, SIZE_K: tl.constexpr, SIZE_L: tl.constexpr, SIZE_R: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_R: tl.constexpr, NUM_STAGES: tl.constexpr):
    tile = tl.program_id(0)
    n_tile = tile % 2
    rest_n = tile // 2
    m_tile = rest_n
    m_start = m_tile * BLOCK_M
    m_idx = m_start + tl.arange(0, BLOCK_M)
    m_mask = m_idx < SIZE_M
    n_start = n_tile * BLOCK_N
    n_idx = n_start + tl.arange(0, BLOCK_N)
    n_mask = n_idx < SIZE_N
    r_start = 0
    r_idx = r_start + tl.arange(0, BLOCK_R)
    v4 = r_idx
    v5 = (v4 < 1)
    acc11 = tl.full([BLOCK_M, BLOCK_N], 0, tl.float32)
    for k_start in tl.range(0, SIZE_K, BLOCK_K, num_stages=NUM_STAGES):
        k_idx = k_start
        # arg2_1
        arg2_1_9 = tl.load(arg2_1_ptr + (k_idx + n_idx * 2), mask=n_mask, other=0)
        v9 = arg2_1_9.to(tl.float32)
        for l_start in tl.range(0, SIZE_L, BLOCK_L, num_stages=NUM_STAGES):
            l_idx = l_start + tl.arange(0, BLOCK_L)
            # arg1_1
            arg1_1_0 = tl.load(arg1_1_ptr + (k_idx * 64 + l_idx[None, :, None] * 2 + m_idx[:, None, None] * 128 + r_idx[None, None, :]), mask=m_mask[:, None, None], other=0)
            # arg0_1
            arg0_1_1 = tl.load(arg0_1_ptr + (k_idx * 32 + l_idx[:, None] + n_idx[None, :] * 64), mask=n_mask[None, :], other=0)
            # bitwise_and
            v3 = (arg0_1_1 & 15)
            # rshift
            v2 = (arg0_1_1 >> 4)
            v6 = tl.where(v5[None, :, None], v3[:, None, :], v2[:, None, :])
            # _to_copy
            v7 = v6.to(tl.float32)
            # sub
            v8 = (v7 - 8.0)
            # mul
            v10 = (v8 * v9[None, None, :])
            # mm
            op10 = v10.to(tl.float16)
            acc11 = tl.dot(tl.reshape(arg1_1_0, (BLOCK_M, BLOCK_L * BLOCK_R)), tl.reshape(op10, (BLOCK_L * BLOCK_R, BLOCK_N)), acc11)
    tl.store(mm_ptr + (m_idx[:, None] * 48 + n_idx[None, :]), acc11.to(tl.float16), mask=m_mask[:, None] & n_mask[None, :])
