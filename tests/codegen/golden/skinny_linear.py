import triton
import triton.language as tl


@triton.jit
def skinny_linear(arg0_1_ptr, arg1_1_ptr, arrivals, parts2, mm_ptr, SIZE_M: tl.constexpr, SIZE_N: tl.constexpr, SIZE_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PART_K: tl.constexpr, NUM_STAGES: tl.constexpr):
    tile = tl.program_id(0)
    k_part = tile % 3
    rest_k = tile // 3
    m_tile = 0
    n_tile = rest_k
    m_start = m_tile * BLOCK_M
    m_idx = m_start + tl.arange(0, BLOCK_M)
    m_mask = m_idx < SIZE_M
    n_start = n_tile * BLOCK_N
    n_idx = n_start + tl.arange(0, BLOCK_N)
    n_mask = n_idx < SIZE_N
    acc2 = tl.full([BLOCK_M, BLOCK_N], 0, tl.float32)
    for k_start in tl.range(k_part * PART_K, tl.minimum(k_part * PART_K + PART_K, SIZE_K), BLOCK_K, num_stages=NUM_STAGES):
        k_idx = k_start + tl.arange(0, BLOCK_K)
        k_mask = k_idx < SIZE_K
        # arg0_1
        arg0_1_0 = tl.load(arg0_1_ptr + (k_idx[None, :] + m_idx[:, None] * 200), mask=m_mask[:, None] & k_mask[None, :], other=0)
        # arg1_1
        arg1_1_1 = tl.load(arg1_1_ptr + (k_idx[:, None] + n_idx[None, :] * 200), mask=k_mask[:, None] & n_mask[None, :], other=0)
        # mm
        acc2 = tl.dot(arg0_1_0, arg1_1_1, acc2)
    # the program that comes last combines the parts of k
    tl.store(parts2 + (rest_k * 3 + k_part) * 512 + tl.arange(0, BLOCK_M)[:, None] * 32 + tl.arange(0, BLOCK_N)[None, :], acc2)
    tl.debug_barrier()
    if tl.atomic_add(arrivals + rest_k, 1, sem="acq_rel") == 2:
        tl.store(arrivals + rest_k, 0)
        all2 = tl.full([BLOCK_M, BLOCK_N], 0.0, tl.float32)
        for other in tl.range(0, 3):
            all2 = all2 + tl.load(parts2 + (rest_k * 3 + other) * 512 + tl.arange(0, BLOCK_M)[:, None] * 32 + tl.arange(0, BLOCK_N)[None, :], cache_modifier=".cg")
        tl.store(mm_ptr + (m_idx[:, None] * 48 + n_idx[None, :]), all2.to(tl.float16), mask=m_mask[:, None] & n_mask[None, :])
