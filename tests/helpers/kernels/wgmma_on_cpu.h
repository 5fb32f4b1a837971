/* wgmma on a processor: products of four warps with matrices in shared memory, which
   are read at some time between the instruction and the wait for it. Part of
   cuda_on_cpu.h.

   wgmma_matrix.h says what a matrix is, wgmma_registers.h where its products go,
   wgmma_memory.h when bytes may be read, wgmma_products.h who asks. Each has rules, of
   which each is a fault here, said by `wgmma_said`, and makes sums that are no numbers.

   Watched where WGMMA is defined: what is written to shared memory is of no interest to
   kernels without. */
#pragma once

namespace emulated {

/* Shared memory begins somewhere: as CUDA has it behind 1 KiB of its own, not always at
   a multiple of what a pattern needs. */
inline unsigned window()
{
    return 1024u + 128u * (unsigned)(now->block->group->launch->seed * 3 % 8);
}

} // namespace emulated

#if defined(WGMMA)
namespace emulated { /* see wgmma.cpp */
typedef float (*Value)(const unsigned char *);
float value_of_bf16(const unsigned char *at);
float value_of_f16(const unsigned char *at);
unsigned address_of(uint64_t matrix, unsigned row, unsigned chunk);
void wait_for_products(unsigned groups_left);
void wgmma(std::vector<float *> d, uint64_t a, uint64_t b, Value value);
template <int COUNT>
inline void wgmma(float (&d)[COUNT], uint64_t a, uint64_t b, Value value)
{
    std::vector<float *> places(COUNT);
    for (int i = 0; i < COUNT; i++)
        places[(size_t)i] = d + i;
    wgmma(std::move(places), a, b, value);
}
} // namespace emulated

inline unsigned in_shared(const void *at)
{
    auto *from = emulated::now->block->shared();
    return emulated::window() + (unsigned)((const unsigned char *)at - from);
}
void fence_for_units();
void wgmma_begin();
void wgmma_commit();
template <int LEFT> inline void wgmma_wait() { emulated::wait_for_products(LEFT); }
template <int COUNT> inline void wgmma_bf16(float (&d)[COUNT], uint64_t a, uint64_t b)
{
    emulated::wgmma(d, a, b, emulated::value_of_bf16);
}
template <int COUNT> inline void wgmma_f16(float (&d)[COUNT], uint64_t a, uint64_t b)
{
    emulated::wgmma(d, a, b, emulated::value_of_f16);
}
template <int COUNT> inline void held(float (&)[COUNT]) {}
#endif
