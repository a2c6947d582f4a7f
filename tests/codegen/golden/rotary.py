import triton
import triton.language as tl


@triton.jit
def rotary(arg3_1_ptr, arg1_1_ptr, arg2_1_ptr, add_1_ptr, arg0_1_ptr, add_ptr, SIZE_M: tl.constexpr, SIZE_N: tl.constexpr, SIZE_P: tl.constexpr, SIZE_Q: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_Q: tl.constexpr, NUM_STAGES: tl.constexpr):
    tile = tl.program_id(0)
    p_tile = 0
    n_tile = tile
    m_start = 0
    m_idx = m_start + tl.arange(0, BLOCK_M)
    n_start = n_tile * BLOCK_N
    n_idx = n_start
    p_start = p_tile * BLOCK_P
    p_idx = p_start + tl.arange(0, BLOCK_P)
    q_start = 0
    q_idx = q_start + tl.arange(0, BLOCK_Q)
    # arg3_1
    arg3_1_0 = tl.load(arg3_1_ptr + (n_idx * 16 + p_idx[:, None] + q_idx[None, :] * 96))
    v0 = arg3_1_0.to(tl.float32)
    # arg1_1
    arg1_1_1 = tl.load(arg1_1_ptr + (n_idx * 16 + p_idx))
    v1 = arg1_1_1.to(tl.float32)
    # mul_2
    v2 = (v0 * v1[:, None])
    v6 = p_idx
    v7 = (v6 < 8)
    # arg3_1
    arg3_1_4 = tl.load(arg3_1_ptr + (n_idx * 16 + p_idx[:, None] + q_idx[None, :] * 96 + 8), mask=(p_idx[:, None] + 8 < 16), other=0)
    v4 = arg3_1_4.to(tl.float32)
    # neg_1
    v5 = (-v4)
    # arg3_1
    arg3_1_3 = tl.load(arg3_1_ptr + (n_idx * 16 + p_idx[:, None] + q_idx[None, :] * 96 - 8), mask=(p_idx[:, None] - 8 >= 0), other=0)
    v3 = arg3_1_3.to(tl.float32)
    v8 = tl.where(v7[:, None], v5, v3)
    # arg2_1
    arg2_1_9 = tl.load(arg2_1_ptr + (n_idx * 16 + p_idx))
    v9 = arg2_1_9.to(tl.float32)
    # mul_3
    v10 = (v8 * v9[:, None])
    # add_1
    v11 = (v2 + v10)
    tl.store(add_1_ptr + (n_idx * 16 + p_idx[:, None] + q_idx[None, :] * 96), v11.to(tl.float16))
    # arg0_1
    arg0_1_12 = tl.load(arg0_1_ptr + (m_idx[:, None] * 96 + n_idx * 16 + p_idx[None, :]))
    v12 = arg0_1_12.to(tl.float32)
    # mul
    v13 = (v12 * v1[None, :])
    # arg0_1
    arg0_1_15 = tl.load(arg0_1_ptr + (m_idx[:, None] * 96 + n_idx * 16 + p_idx[None, :] + 8), mask=(p_idx[None, :] + 8 < 16), other=0)
    v15 = arg0_1_15.to(tl.float32)
    # neg
    v16 = (-v15)
    # arg0_1
    arg0_1_14 = tl.load(arg0_1_ptr + (m_idx[:, None] * 96 + n_idx * 16 + p_idx[None, :] - 8), mask=(p_idx[None, :] - 8 >= 0), other=0)
    v14 = arg0_1_14.to(tl.float32)
    v17 = tl.where(v7[None, :], v16, v14)
    # mul_1
    v18 = (v17 * v9[None, :])
    # add
    v19 = (v13 + v18)
    tl.store(add_ptr + (m_idx[:, None] * 96 + n_idx * 16 + p_idx[None, :]), v19.to(tl.float16))
