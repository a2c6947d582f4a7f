import triton
import triton.language as tl


@triton.jit
def column_sum(arg0_1_ptr, sum_1_ptr, SIZE_M: tl.constexpr, SIZE_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, PART_K: tl.constexpr, NUM_STAGES: tl.constexpr):
    tile = tl.program_id(0)
    k_part = tile % 4
    rest_k = tile // 4
    m_tile = rest_k
    m_start = m_tile * BLOCK_M
    m_idx = m_start + tl.arange(0, BLOCK_M)
    m_mask = m_idx < SIZE_M
    acc1 = tl.full([BLOCK_M, BLOCK_K], 0.0, tl.float32)
    for k_start in tl.range(k_part * PART_K, tl.minimum(k_part * PART_K + PART_K, SIZE_K), BLOCK_K, num_stages=NUM_STAGES):
        k_idx = k_start + tl.arange(0, BLOCK_K)
        k_mask = k_idx < SIZE_K
        # arg0_1
        arg0_1_0 = tl.load(arg0_1_ptr + (k_idx[None, :] * 40 + m_idx[:, None]), mask=m_mask[:, None] & k_mask[None, :], other=0)
        v0 = arg0_1_0.to(tl.float32)
        # sum_1
        acc1 = acc1 + tl.where(k_mask[None, :], v0, 0.0)
    v1 = tl.sum(acc1, axis=1)
    tl.atomic_add(sum_1_ptr + (m_idx), v1, mask=m_mask, sem="relaxed")
