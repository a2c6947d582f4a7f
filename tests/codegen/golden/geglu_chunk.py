import triton
import triton.language as tl


@triton.jit
def quick_erfc(x):
    root = tl.rsqrt(1.0 + 0.54 * tl.abs(x))
    t = root * root
    tail = t * -0.1788069301 + 0.3685383109
    tail = ((tail * t + 0.1905236274) * t + 0.3156641434) * t + 0.3040418497
    tail = tail * t * tl.exp2(x * x * -1.4426950408889634)
    return tl.where(x < 0, 2.0 - tail, tail)


@triton.jit
def geglu_chunk(arg0_1_ptr, mul_ptr, SIZE_M: tl.constexpr, SIZE_N: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, NUM_STAGES: tl.constexpr):
    tile = tl.program_id(0)
    n_tile = tile % 2
    rest_n = tile // 2
    m_tile = rest_n
    m_start = m_tile * BLOCK_M
    m_idx = m_start
    n_start = n_tile * BLOCK_N
    n_idx = n_start + tl.arange(0, BLOCK_N)
    n_mask = n_idx < SIZE_N
    # arg0_1
    arg0_1_0 = tl.load(arg0_1_ptr + (m_idx * 400 + n_idx), mask=n_mask, other=0)
    v0 = arg0_1_0.to(tl.float32)
    # gelu
    v1 = ((v0 * 0.5) * quick_erfc((v0 * (-0.7071067811865476))))
    # arg0_1
    arg0_1_2 = tl.load(arg0_1_ptr + (m_idx * 400 + n_idx + 200), mask=n_mask, other=0)
    v2 = arg0_1_2.to(tl.float32)
    # mul
    v3 = (v1 * v2)
    tl.store(mul_ptr + (m_idx * 200 + n_idx), v3.to(tl.float16), mask=n_mask)
