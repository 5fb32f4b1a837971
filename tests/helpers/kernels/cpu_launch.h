/* A launch: blocks one after another, their warps in turns drawn from a seed. */
#pragma once
#include "cpu_fibers.h"

namespace emulated {

struct Random {
    uint64_t state;

    uint64_t draw()
    {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        return state;
    }
    unsigned below(unsigned count) { return (unsigned)(draw() % count); }
};

inline dim3 place_of(unsigned number, const dim3 &size)
{
    return {number % size.x, number / size.x % size.y, number / size.x / size.y};
}

/* One cluster, from the first of its blocks. */
inline void set_up(Launch &launch, unsigned first, Group &group, std::vector<Fiber> &fibers)
{
    unsigned each = launch.block.x * launch.block.y * launch.block.z;
    group.launch = &launch;
    group.barrier.alive = each * launch.cluster;
    for (unsigned rank = 0; rank < launch.cluster; rank++) {
        auto block = std::make_unique<Block>();
        block->number = place_of(first + rank, launch.grid);
        block->rank = rank;
        block->group = &group;
        block->barrier.alive = each;
        block->room.assign(launch.shared + 256, POISON);
        block->warps.resize((each + 31) / 32);
        for (unsigned w = 0; w < block->warps.size(); w++)
            block->warps[w].barrier.alive = min(32u, each - w * 32);
        HOOK_BLOCK(*block, first + rank, launch, each);
        group.blocks.push_back(std::move(block));
    }
    for (unsigned i = 0; i < each * launch.cluster; i++) {
        Fiber &fiber = fibers[i];
        fiber.block = group.blocks[i / each].get();
        fiber.place = place_of(i % each, launch.block);
        fiber.warp = &fiber.block->warps[i % each / 32];
        fiber.lane = i % each % 32;
        begin(fiber);
    }
}

inline void run_some(std::vector<Fiber> &fibers, unsigned first, unsigned last)
{
    for (unsigned i = first; i < last; i++) {
        if (fibers[i].done)
            continue;
        now = &fibers[i];
        HOOK_RUN(i);
        go(scheduler, fibers[i]);
        HOOK_IDLE();
    }
}

/* So many turns, or fewer where all that are left would only wait. */
template <class F> inline void take_turns(const Group &group, unsigned most, F turn)
{
    for (unsigned t = 0, idle = 0; t < most && idle < IDLE; t++) {
        uint64_t seen = group.events;
        turn();
        idle = group.events == seen ? idle + 1 : 0;
    }
}

/* Warps in an order that is drawn anew every round; some have many turns, and now and
   then one block of a cluster has none for a while. Seed 0: in their own order. */
inline void run_round(Group &group, std::vector<Fiber> &fibers, Random &random,
                      std::vector<unsigned> &order)
{
    Launch &launch = *group.launch;
    unsigned each = launch.block.x * launch.block.y * launch.block.z;
    unsigned total = each * launch.cluster;
    for (unsigned i = (unsigned)order.size(); launch.seed && i > 1; i--)
        std::swap(order[i - 1], order[random.below(i)]);
    if (launch.seed && launch.cluster > 1 && random.below(3) == 0) {
        unsigned late = random.below(launch.cluster);
        take_turns(group, 400, [&] {
            for (unsigned b = 0; b < launch.cluster; b++)
                if (b != late)
                    run_some(fibers, b * each, (b + 1) * each);
        });
    }
    for (unsigned warp : order) {
        unsigned first = warp / ((each + 31) / 32) * each + warp % ((each + 31) / 32) * 32;
        unsigned end = (warp / ((each + 31) / 32) + 1) * each;
        unsigned turns = launch.seed && random.below(4) == 0 ? 64 : 1;
        take_turns(group, turns,
                   [&] { run_some(fibers, first, min(first + 32, min(end, total))); });
    }
}

inline void run_group(Launch &launch, unsigned first, std::vector<Fiber> &fibers)
{
    Group group;
    set_up(launch, first, group, fibers);
    unsigned each = launch.block.x * launch.block.y * launch.block.z;
    std::vector<unsigned> order((each + 31) / 32 * launch.cluster);
    for (unsigned i = 0; i < order.size(); i++)
        order[i] = i;
    Random random{launch.seed * 0x9E3779B97F4A7C15ull + first + 1};
    uint64_t seen = 0;
    for (unsigned idle = 0;; idle++) {
        run_round(group, fibers, random, order);
        if (group.barrier.alive == 0)
            return;
        if (group.events != seen)
            idle = 0;
        seen = group.events;
        if (idle > PATIENCE || HOOK_STOPPED()) {
            launch.stuck = true;
            return;
        }
    }
}

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

/* CuPy compiles with -ftz=true: a float below 2^-126 is zero, before and after. */
struct Flushed {
#if defined(__SSE2__)
    unsigned before = __builtin_ia32_stmxcsr();
    Flushed() { __builtin_ia32_ldmxcsr(before | 0x8040u); }
    ~Flushed() { __builtin_ia32_ldmxcsr(before); }
#endif
};

/* 0, or 1 where it got nowhere. */
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
    launch.entry = Call<A...>::enter;
    launch.arguments = &call;
    HOOK_LAUNCH(launch);
    unsigned blocks = grid[0] * grid[1] * grid[2];
    unsigned threads = block[0] * block[1] * block[2] * cluster;
    auto work = [&] {
        Flushed flushed;
        std::vector<Fiber> &fibers = kept;
        if (fibers.size() < threads)
            fibers.resize(threads);
        for (unsigned first; (first = launch.next.fetch_add(cluster)) < blocks;) {
#if defined(LAST_BLOCK_FIRST) /* for kernels whose blocks meet only at the end */
            first = blocks - cluster - first;
#endif
            if (!launch.stuck)
                run_group(launch, first, fibers);
        }
    };
    std::vector<std::thread> others;
    for (int i = 1; i < workers; i++)
        others.emplace_back(work);
    work();
    for (auto &other : others)
        other.join();
    return launch.stuck ? 1 : 0;
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
