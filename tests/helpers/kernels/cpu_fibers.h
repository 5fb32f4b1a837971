/* Threads of a block as fibers: who waits for whom, and what is under way. */
#pragma once
#include "cpu_words.h"

namespace emulated {

constexpr size_t STACK = 64 * 1024;
constexpr unsigned char POISON = 0xff; /* in every float format here: not a number */
constexpr unsigned PATIENCE = 200000;  /* rounds in which nothing happens */
constexpr unsigned IDLE = 4;           /* turns of some, in which nothing happens */

struct Barrier {
    unsigned came = 0, alive = 0, turn = 0;
};

/* Operands of one warp-wide operation. */
struct Warp {
    Barrier barrier;
    uint64_t word[32];
    const void *row[32];
    uint32_t a[32][4], b[32][2], r[32][4];
    float c[32][4];
};

struct Launch {
    dim3 grid, block;
    unsigned cluster;
    size_t shared;
    uint64_t seed;
    void (*entry)(void *);
    void *arguments;
    std::atomic<unsigned> next{0};
    std::atomic<bool> stuck{false};
};

struct Group;

struct Block {
    dim3 number;
    unsigned rank;
    Group *group;
    Barrier barrier;
    std::vector<Warp> warps;
    std::vector<unsigned char> room;
    std::shared_ptr<struct Units> units; /* of wgmma_on_cpu.h */

    unsigned char *shared()
    {
        return (unsigned char *)(((uintptr_t)room.data() + 127) & ~(uintptr_t)127);
    }
};

/* The blocks of one cluster. */
struct Group {
    Launch *launch;
    Barrier barrier;
    std::vector<std::unique_ptr<Block>> blocks;
    uint64_t events = 0; /* barriers passed, threads done: something happens */
};

struct Copy {
    void *to;
    const void *from;
    int bytes, whole, batch;
};

struct Fiber {
    void *stack_top = nullptr;
    std::unique_ptr<char[]> stack;
    dim3 place;
    Block *block = nullptr;
    Warp *warp = nullptr;
    unsigned lane = 0, cluster_turn = 0;
    bool done = false;
    std::vector<Copy> copies; /* of cp.async, not landed yet */
    int batch = 0;
#if !defined(__x86_64__)
    ucontext_t context;
#endif
};

inline thread_local Fiber *now = nullptr;
inline thread_local Fiber scheduler;
inline thread_local std::vector<Fiber> kept; /* for the next launch: stacks cost most */

#if defined(__x86_64__)
extern "C" void emulated_switch(void **save, void *load);
asm(R"(.text
.weak emulated_switch
.type emulated_switch,@function
emulated_switch:
 pushq %rbp
 pushq %rbx
 pushq %r12
 pushq %r13
 pushq %r14
 pushq %r15
 movq %rsp,(%rdi)
 movq %rsi,%rsp
 popq %r15
 popq %r14
 popq %r13
 popq %r12
 popq %rbx
 popq %rbp
 ret
)");
inline void go(Fiber &from, Fiber &to) { emulated_switch(&from.stack_top, to.stack_top); }
#else
inline void go(Fiber &from, Fiber &to) { swapcontext(&from.context, &to.context); }
#endif

inline void yield()
{
    Fiber *self = now;
    go(*self, scheduler);
}

inline void turn(Barrier &barrier)
{
    barrier.came = 0;
    barrier.turn++;
    now->block->group->events++;
}

inline void arrive(Barrier &barrier)
{
    if (++barrier.came >= barrier.alive)
        turn(barrier);
}

inline void wait(Barrier &barrier)
{
    unsigned before = barrier.turn;
    arrive(barrier);
    while (barrier.turn == before)
        yield();
}

/* A thread that is done is waited for no longer. */
inline void leave(Barrier &barrier)
{
    barrier.alive--;
    if (barrier.alive && barrier.came >= barrier.alive)
        turn(barrier);
}

inline void began(const void *to, int bytes); /* a copy: see wgmma_on_cpu.h */
inline void landed(const void *to, int bytes);

inline void land(Fiber &fiber, int batches_left)
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

inline void body()
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

inline void begin(Fiber &fiber)
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

} // namespace emulated
