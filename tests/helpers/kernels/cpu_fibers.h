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
    bool last_block_first = false;
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

/* Where whoever does not run goes on. */
struct Context {
    void *stack_top = nullptr;
#if !defined(__x86_64__)
    ucontext_t context;
#endif
};

struct Fiber : Context {
    std::unique_ptr<char[]> stack;
    dim3 place;
    Block *block = nullptr;
    Warp *warp = nullptr;
    unsigned lane = 0, cluster_turn = 0;
    bool done = false;
    std::vector<Copy> copies; /* of cp.async, not landed yet */
    int batch = 0;
};

inline thread_local Fiber *now = nullptr;
inline thread_local Context scheduler;

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
inline void go(Context &from, Context &to)
{
    emulated_switch(&from.stack_top, to.stack_top);
}
#else
inline void go(Context &from, Context &to) { swapcontext(&from.context, &to.context); }
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

/* What is written to shared memory: of interest to products of wgmma alone. */
#if defined(WGMMA)
void began(const void *to, int bytes); /* a copy */
void landed(const void *to, int bytes);
void wrote(const void *to, int bytes); /* this thread, and no unit */
#else
inline void began(const void *, int) {}
inline void landed(const void *, int) {}
inline void wrote(const void *, int) {}
#endif

void land(Fiber &fiber, int batches_left); /* see launch.cpp */

} // namespace emulated
