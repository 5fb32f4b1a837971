/* How a launch runs: compiled once for all kernels that watch the same (emulator.py),
   behind cuda_on_cpu.h and whatever fills its hooks. */
#include <thread>

namespace emulated {

void land(Fiber &fiber, int batches_left)
{
    size_t done = 0;
    for (; done < fiber.copies.size(); done++) {
        Copy &copy = fiber.copies[done];
        if (copy.batch >= fiber.batch - batches_left)
            break;
        HOOK_LAND(copy);
        memset(copy.to, 0, (size_t)copy.whole);
        memcpy(copy.to, copy.from, (size_t)copy.bytes);
        landed(copy.to, copy.whole);
    }
    fiber.copies.erase(fiber.copies.begin(), fiber.copies.begin() + (long)done);
}

void body()
{
    for (;;) {
        Fiber *self = now;
        Launch *launch = self->block->group->launch;
        launch->entry(launch->arguments);
        HOOK_EXIT();
        self->done = true;
        self->block->group->events++;
        leave(self->warp->barrier);
        leave(self->block->barrier);
        leave(self->block->group->barrier);
        go(*self, scheduler);
    }
}

void begin(Fiber &fiber)
{
    if (!fiber.stack)
        fiber.stack.reset(new char[STACK + 64]);
    fiber.done = false;
    fiber.copies.clear();
    fiber.batch = 0;
    char *base = (char *)(((uintptr_t)fiber.stack.get() + 63) & ~(uintptr_t)63);
#if defined(__x86_64__)
    void **top = (void **)(base + STACK - 64);
    *--top = nullptr; /* `body` never returns */
    *--top = (void *)body;
    for (int i = 0; i < 6; i++)
        *--top = nullptr;
    fiber.stack_top = top;
#else
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = base;
    fiber.context.uc_stack.ss_size = STACK;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, (void (*)())body, 0);
#endif
}

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

dim3 place_of(unsigned number, const dim3 &size)
{
    return {number % size.x, number / size.x % size.y, number / size.x / size.y};
}

/* One cluster, from the first of its blocks. */
void set_up(Launch &launch, unsigned first, Group &group, std::vector<Fiber> &fibers)
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

void run_some(std::vector<Fiber> &fibers, unsigned first, unsigned last)
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
template <class F> void take_turns(const Group &group, unsigned most, F turn)
{
    for (unsigned t = 0, idle = 0; t < most && idle < IDLE; t++) {
        uint64_t seen = group.events;
        turn();
        idle = group.events == seen ? idle + 1 : 0;
    }
}

/* Warps in an order that is drawn anew every round; some have many turns, and now and
   then one block of a cluster has none for a while. Seed 0: in their own order. */
void run_round(Group &group, std::vector<Fiber> &fibers, Random &random,
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

void run_group(Launch &launch, unsigned first, std::vector<Fiber> &fibers)
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

/* CuPy compiles with -ftz=true: a float below 2^-126 is zero, before and after. */
struct Flushed {
#if defined(__SSE2__)
    unsigned before = __builtin_ia32_stmxcsr();
    Flushed() { __builtin_ia32_ldmxcsr(before | 0x8040u); }
    ~Flushed() { __builtin_ia32_ldmxcsr(before); }
#endif
};

thread_local std::vector<Fiber> kept; /* for the next launch: stacks cost most */

int run_launch(Launch &launch, unsigned blocks, unsigned threads, int workers)
{
    HOOK_LAUNCH(launch);
    auto work = [&] {
        Flushed flushed;
        std::vector<Fiber> &fibers = kept;
        if (fibers.size() < threads)
            fibers.resize(threads);
        for (unsigned first; (first = launch.next.fetch_add(launch.cluster)) < blocks;) {
            if (launch.last_block_first)
                first = blocks - launch.cluster - first;
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

extern "C" unsigned bank_conflicts() { return emulated::conflicts.exchange(0); }

#if defined(WGMMA)
#include "wgmma.cpp"
#else
extern "C" const char *wgmma_said() { return nullptr; }
#endif
