/* What threads say to each other: barriers, lanes, atomics, memory of others. */
#pragma once
#include "cpu_fibers.h"

namespace emulated {

/* Lanes leave their operands; the last that comes computes for all. */
template <class F> inline void together(F compute)
{
    Barrier &barrier = now->warp->barrier;
    unsigned before = barrier.turn;
    HOOK_ARRIVE(OF_LANES);
    if (barrier.came + 1 >= barrier.alive) {
        compute(now->warp);
        turn(barrier);
    } else {
        barrier.came++;
        while (barrier.turn == before)
            yield();
    }
    HOOK_PASS(OF_LANES);
}

template <class T> inline T from_lane(T value, unsigned lane)
{
    static_assert(sizeof(T) <= 8, "one word");
    Warp *warp = now->warp;
    uint64_t word = 0;
    memcpy(&word, &value, sizeof value);
    warp->word[now->lane] = word;
    HOOK_ARRIVE(OF_LANES);
    wait(warp->barrier);
    HOOK_PASS(OF_LANES);
    memcpy(&value, &warp->word[lane & 31], sizeof value);
    wait(warp->barrier);
    return value;
}

} // namespace emulated

#define SHARED_MEMORY(name) unsigned char *name = emulated::now->block->shared()

inline void __syncthreads()
{
    HOOK_ARRIVE(OF_BLOCK);
    emulated::wait(emulated::now->block->barrier);
    HOOK_PASS(OF_BLOCK);
}
inline void __syncwarp(unsigned = 0xffffffffu)
{
    HOOK_ARRIVE(OF_WARP);
    emulated::wait(emulated::now->warp->barrier);
    HOOK_PASS(OF_WARP);
}
inline void __threadfence()
{
    HOOK_FENCE();
    std::atomic_thread_fence(std::memory_order_seq_cst);
}
inline unsigned atomicAdd(unsigned *at, unsigned value)
{
    return __atomic_fetch_add(at, value, __ATOMIC_SEQ_CST);
}
inline unsigned atomicExch(unsigned *at, unsigned value)
{
    return __atomic_exchange_n(at, value, __ATOMIC_SEQ_CST);
}
inline float __uint_as_float(unsigned bits)
{
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
inline unsigned __float_as_uint(float value)
{
    unsigned bits;
    memcpy(&bits, &value, 4);
    return bits;
}
inline float __fdividef(float a, float b) { return a / b; }
template <class T> inline T __ldg(const T *at) { return *at; }
template <class T> inline T __ldcg(const T *at) { return *at; }
template <class T> inline void __stcg(T *at, T value) { *at = value; }
template <class T> inline T __shfl_xor_sync(unsigned, T value, int mask)
{
    return emulated::from_lane(value, emulated::now->lane ^ (unsigned)mask);
}
template <class T> inline T __shfl_down_sync(unsigned, T value, unsigned by)
{
    unsigned lane = emulated::now->lane;
    return emulated::from_lane(value, lane + by < 32 ? lane + by : lane);
}
template <class T> inline T __shfl_sync(unsigned, T value, int lane)
{
    return emulated::from_lane(value, (unsigned)lane);
}

/* A thread that spins until another block has written lets others run. */
inline void spin() { emulated::yield(); }
inline unsigned load_acquire(const unsigned *at)
{
    return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}
template <class T> inline T load_now(const T *at) { return *at; }
inline void fetch_ahead(const void *at) { (void)*(const volatile char *)at; }
