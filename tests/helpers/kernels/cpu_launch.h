/* A launch: blocks one after another, their warps in turns drawn from a seed. */
#pragma once
#include "cpu_fibers.h"

namespace emulated {

/* Everything a launch is given as an array of pointers, as the driver takes it. */
template <class... A> struct Call {
    void (*kernel)(A...);
    void **values;

    template <size_t... I> void with(std::index_sequence<I...>)
    {
        kernel(*(std::remove_const_t<A> *)values[I]...);
    }
    static void enter(void *self)
    {
        ((Call *)self)->with(std::index_sequence_for<A...>{});
    }
};

/* Runs a launch of clusters of so many threads (launch.cpp): 0, or 1 where it got
   nowhere. */
int run_launch(Launch &launch, unsigned blocks, unsigned threads, int workers);

template <class... A>
int run(void (*kernel)(A...), const unsigned *grid, const unsigned *block, unsigned cluster,
        size_t shared, uint64_t seed, int workers, void **values)
{
    Call<A...> call{kernel, values};
    Launch launch;
    launch.grid = {grid[0], grid[1], grid[2]};
    launch.block = {block[0], block[1], block[2]};
    launch.cluster = cluster;
    launch.shared = shared;
    launch.seed = seed;
#if defined(LAST_BLOCK_FIRST) /* for kernels whose blocks meet only at the end */
    launch.last_block_first = true;
#endif
    launch.entry = Call<A...>::enter;
    launch.arguments = &call;
    unsigned blocks = grid[0] * grid[1] * grid[2];
    unsigned threads = block[0] * block[1] * block[2] * cluster;
    return run_launch(launch, blocks, threads, workers);
}

} // namespace emulated

#define LAUNCHABLE(kernel)                                                             \
    extern "C" int launch_##kernel(const unsigned *grid, const unsigned *block,        \
                                   unsigned cluster, size_t shared, uint64_t seed,     \
                                   int workers, void **values)                         \
    {                                                                                  \
        return emulated::run(kernel, grid, block, cluster, shared, seed, workers,      \
                             values);                                                  \
    }
