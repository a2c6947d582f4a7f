import triton
import triton.language as tl


@triton.jit
def sigmoid(x):
    root = tl.rsqrt(1.0 + tl.exp2(x * -1.4426950408889634))
    return root * root


@triton.jit
def linear_bias_gelu(arg2_1_ptr, arg0_1_desc32x32, arg1_1_desc32x32, gelu_desc32x32, SIZE_M: tl.constexpr, SIZE_N: tl.constexpr, SIZE_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, NUM_STAGES: tl.constexpr, TILES: tl.constexpr, PROGRAMS: tl.constexpr):
    for tile in tl.range(tl.program_id(0), TILES, PROGRAMS, flatten=True):
        band = tile // 4
        band_rows = tl.minimum(4 - band * 2, 2)
        m_tile = band * 2 + (tile % 4) % band_rows
        n_tile = (tile % 4) // band_rows
        m_start = m_tile * BLOCK_M
        m_idx = m_start + tl.arange(0, BLOCK_M)
        m_mask = m_idx < SIZE_M
        n_start = n_tile * BLOCK_N
        n_idx = n_start + tl.arange(0, BLOCK_N)
        acc2 = tl.full([BLOCK_M, BLOCK_N], 0, tl.float32)
        for k_start in tl.range(0, SIZE_K, BLOCK_K):
            k_idx = k_start + tl.arange(0, BLOCK_K)
            # arg0_1
            arg0_1_0 = arg0_1_desc32x32.load([m_start, k_start])
            # arg1_1
            arg1_1_1 = arg1_1_desc32x32.load([n_start, k_start]).T
            # addmm
            acc2 = tl.dot(arg0_1_0, arg1_1_1, acc2)
        # arg2_1
        arg2_1_3 = tl.load(arg2_1_ptr + (n_idx))
        v3 = arg2_1_3.to(tl.float32)
        # addmm_bias
        v4 = (acc2 + v3[None, :])
        # gelu
        v5 = (v4 * sigmoid(((v4 * 1.5957691216057308) * (((v4 * v4) * 0.044715) + 1.0))))
        gelu_desc32x32.store([m_start, n_start], v5.to(tl.float16))
