/* The text of a kernel, watched: behind cuda_on_cpu.h, before the kernel.

   The compiler says every load and store (-fsanitize=thread, with watch.cpp in the place
   of its library); what the emulation does for a kernel is hushed, and said here. A
   thread's own numbers come by value: all memory that a kernel touches is an array, shared
   memory, its stack, or a fault. */
#pragma once

namespace watching {

struct Hush {
    Hush() { watch_hush(1); }
    ~Hush() { watch_hush(-1); }
};

#define UNSAID __attribute__((no_sanitize("thread"), noinline))
UNSAID static dim3 thread_index() { return emulated::now->place; }
UNSAID static dim3 block_index() { return emulated::now->block->number; }
UNSAID static dim3 grid_size() { return emulated::now->block->group->launch->grid; }
UNSAID static dim3 block_size() { return emulated::now->block->group->launch->block; }
UNSAID static unsigned char *shared()
{
    Hush hush;
    return emulated::now->block->shared();
}

UNSAID static void at_line(uint32_t line) { watch_issued = line | IS_LINE; }

template <class F> inline auto quietly(uint32_t line, F done)
{
    at_line(line);
    Hush hush;
    return done();
}

UNSAID static unsigned char *in_block(const void *at, unsigned rank)
{
    Hush hush;
    auto *block = emulated::now->block;
    return block->group->blocks[rank]->shared() + ((unsigned char *)at - block->shared());
}
UNSAID static void send(void *at, const void *value, size_t bytes)
{
    memcpy(at, value, bytes);
}
template <class T>
inline void store_there(uint32_t line, T *at, unsigned rank, T value)
{
    unsigned char *to = in_block(at, rank);
    watch_access(CLUSTER, WRITE, to, sizeof value, line | IS_LINE);
    send(to, &value, sizeof value);
}

/* The kernel itself, between what the emulation does. */
template <class... A> struct Loudly {
    template <void (*KERNEL)(A...)> static void run(A... arguments)
    {
        watch_hush(-1);
        KERNEL(arguments...);
        watch_hush(1);
    }
};
template <class... A> Loudly<A...> loudly(void (*)(A...)) { return {}; }

} // namespace watching

#undef threadIdx
#undef blockIdx
#undef gridDim
#undef blockDim
#undef SHARED_MEMORY
#undef LAUNCHABLE
#define threadIdx watching::thread_index()
#define blockIdx watching::block_index()
#define gridDim watching::grid_size()
#define blockDim watching::block_size()
#define SHARED_MEMORY(name) unsigned char *name = watching::shared()
#define QUIETLY(...) watching::quietly(__LINE__, [&] { return __VA_ARGS__; })

#define __syncthreads() QUIETLY(__syncthreads())
#define __syncwarp() QUIETLY(__syncwarp())
#define __threadfence() QUIETLY(__threadfence())
#define __shfl_xor_sync(...) QUIETLY(__shfl_xor_sync(__VA_ARGS__))
#define __shfl_sync(...) QUIETLY(__shfl_sync(__VA_ARGS__))
#define __shfl_down_sync(...) QUIETLY(__shfl_down_sync(__VA_ARGS__))
#define spin() QUIETLY(spin())
#define fetch_ahead(at) ((void)(at))
#define cluster_rank() QUIETLY(cluster_rank())
#define cluster_arrive() QUIETLY(cluster_arrive())
#define cluster_wait() QUIETLY(cluster_wait())
#define copy_commit() QUIETLY(copy_commit())
#define AT(kind, at, bytes)                                                            \
    watch_access(watching::GENERIC, watching::kind, at, bytes, __LINE__ | IS_LINE)
#define atomicAdd(at, value) (AT(ATOMIC, at, 4), QUIETLY(atomicAdd(at, value)))
#define atomicExch(at, value) (AT(ATOMIC, at, 4), QUIETLY(atomicExch(at, value)))
#define load_acquire(at) (AT(ACQUIRE, at, 4), QUIETLY(load_acquire(at)))
#define load_matrix_4(to, row) (AT(READ, row, 16), QUIETLY(load_matrix_4(to, row)))
#define copy_async_16(to, from, bytes)                                                 \
    (watch_copy(to, from, bytes, 16, __LINE__ | IS_LINE),                              \
     QUIETLY(copy_async_16(to, from, bytes)))
#define cluster_store(...) watching::store_there(__LINE__, __VA_ARGS__)
#define mma_bf16(...) QUIETLY(mma_bf16(__VA_ARGS__))
#define mma_f16(...) QUIETLY(mma_f16(__VA_ARGS__))
#define mma_tf32(...) QUIETLY(mma_tf32(__VA_ARGS__))
#define mma_e4m3(...) QUIETLY(mma_e4m3(__VA_ARGS__))
#define mma_e5m2(...) QUIETLY(mma_e5m2(__VA_ARGS__))
namespace watching {
template <int LEFT> inline void quiet_copy_wait() { Hush hush; copy_wait<LEFT>(); }
} // namespace watching
#define copy_wait watching::quiet_copy_wait

#define LAUNCHABLE(kernel)                                                             \
    extern "C" int launch_##kernel(const unsigned *grid, const unsigned *block,        \
                                   unsigned cluster, size_t shared, uint64_t seed,     \
                                   int workers, void **values)                         \
    {                                                                                  \
        auto run = decltype(watching::loudly(kernel))::run<kernel>;                    \
        watch_sources(1);                                                              \
        int stuck = emulated::run(+run, grid, block, cluster, shared, seed, workers,   \
                                  values);                                             \
        watch_sources(0);                                                              \
        return stuck;                                                                  \
    }
