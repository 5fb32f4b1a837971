/* What the language of CUDA has and C++ has not; hooks, where nobody watches. */
#pragma once
/* First of all: below, words of CUDA are taken from the language. */
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#define __global__
#define __device__
#define __host__
#define __constant__ static const
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __restrict__
#define threadIdx (emulated::now->place)
#define blockIdx (emulated::now->block->number)
#define gridDim (emulated::now->block->group->launch->grid)
#define blockDim (emulated::now->block->group->launch->block)

/* For those who watch (ptx/watch.h); empty for everybody else. */
#if !defined(HOOK_RUN)
#define HOOK_LAND(copy)
#define HOOK_UNIT(at, bytes)
#define HOOK_FENCE()
#define HOOK_ARRIVE(meet)
#define HOOK_PASS(meet)
#define HOOK_EXIT()
#define HOOK_STOPPED() 0
#define HOOK_LAUNCH(launch)
#define HOOK_BLOCK(block, number, launch, threads)
#define HOOK_RUN(index)
#define HOOK_IDLE()
#endif

struct dim3 { unsigned x = 1, y = 1, z = 1; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) double2 { double x, y; };
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return {x, y, z, w};
}
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

template <class T> inline T min(T a, T b) { return b < a ? b : a; }
template <class T> inline T max(T a, T b) { return a < b ? b : a; }
