/* Runs kernels of CUDA on a processor, thread for thread.

   Every thread of a block is a fiber; barriers and operations of a warp switch fibers.
   Blocks of a cluster run side by side. What a race would read is made likely to be
   wrong: warps take turns in an order drawn from a seed, shared memory begins as
   numbers that are none, copies that are under way land when they are waited for and
   not before. A launch that gets nowhere says so.

   ldmatrix and mma have the lane layouts of the hardware; their sums are in float32, in
   ascending order. Not shown here: the memory model, speed, how tensor cores round. */
#pragma once
#define CUDA_ON_CPU 1

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
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

/* ---- what kernels may call -------------------------------------------------------- */

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

/* Copies to shared memory land as late as they may: at the wait that asks for them. */
inline void copy_async_16(void *to, const void *from, int bytes)
{
    emulated::now->copies.push_back({to, from, bytes, 16, emulated::now->batch});
    emulated::began(to, 16);
}
inline void copy_async_16(void *to, const void *from) { copy_async_16(to, from, 16); }
inline void copy_commit() { emulated::now->batch++; }
template <int LEFT> inline void copy_wait() { emulated::land(*emulated::now, LEFT); }

/* Rows of an 8 x 8 matrix that share banks with another row of it. */
namespace emulated {
inline std::atomic<unsigned> conflicts{0};
inline void count_conflicts(Warp *warp)
{
    for (int matrix = 0; matrix < 4; matrix++) {
        unsigned banks = 0;
        for (int row = 0; row < 8; row++) {
            unsigned own = 1u << ((uintptr_t)warp->row[matrix * 8 + row] / 16 % 8);
            conflicts += (banks & own) != 0;
            banks |= own;
        }
    }
}
} // namespace emulated
extern "C" unsigned bank_conflicts() { return emulated::conflicts.exchange(0); }

inline void load_matrix_4(unsigned (&to)[4], const void *row)
{
    auto *self = emulated::now;
    auto *warp = self->warp;
    if ((uintptr_t)row & 15)
        abort(); /* ldmatrix needs rows of 16 bytes, aligned */
    warp->row[self->lane] = row;
    emulated::together([](emulated::Warp *w) {
        emulated::count_conflicts(w);
        for (int lane = 0; lane < 32; lane++)
            for (int q = 0; q < 4; q++)
                memcpy(&w->r[lane][q], (const char *)w->row[q * 8 + lane / 4] + lane % 4 * 4,
                       4);
    });
    memcpy(to, warp->r[self->lane], sizeof to);
}

namespace emulated {

/* As instructions have it: no float on the way is subnormal. */
inline float of_half(unsigned bits)
{
    unsigned sign = (bits & 0x8000u) << 16, size = bits & 0x7fffu;
    float value = size >= 0x7c00u
                      ? __uint_as_float(0x7f800000u | (size & 0x3ffu) << 13)
                      : size >= 0x400u ? __uint_as_float((size << 13) + (112u << 23))
                                       : (float)size * 0x1p-24f;
    return __uint_as_float(__float_as_uint(value) | sign);
}

inline unsigned to_half(float value)
{
    unsigned bits = __float_as_uint(value), sign = bits >> 16 & 0x8000u;
    unsigned size = bits & 0x7fffffffu;
    if (size > 0x7f800000u)
        return sign | 0x7e00u;
    if (size >= 0x477ff000u)
        return sign | 0x7c00u;
    if (size < 0x38800000u) /* a subnormal: float addition rounds it to even */
        return sign | (__float_as_uint(__uint_as_float(size) + 0.5f) - 0x3f000000u);
    size += 0xfffu + (size >> 13 & 1u);
    return sign | ((size - 0x38000000u) >> 13);
}

inline float of_e4m3(unsigned bits)
{
    unsigned size = bits & 0x7fu, sign = (bits & 0x80u) << 24;
    float value = size == 0x7fu ? __uint_as_float(0x7fc00000u) : of_half(size << 7) * 256.0f;
    return __uint_as_float(__float_as_uint(value) | sign);
}

inline float of_e5m2(unsigned bits) { return of_half(bits << 8); }

/* D (16 x 8) += A (16 x K) B (K x 8) of elements that lie EACH to a 32-bit word. */
template <int K, int EACH, class F> inline void multiply(Warp *w, F element)
{
    constexpr int PER_REGISTER = EACH, HALF = K / 2;
    float A[16][K], B[K][8], C[16][8];
    for (int lane = 0; lane < 32; lane++) {
        int g = lane / 4, t = lane % 4 * PER_REGISTER;
        for (int e = 0; e < EACH; e++) {
            for (int q = 0; q < 4; q++)
                A[g + (q & 1) * 8][t + e + (q >> 1) * HALF] = element(w->a[lane][q], e);
            for (int q = 0; q < 2; q++)
                B[t + e + q * HALF][g] = element(w->b[lane][q], e);
        }
        for (int q = 0; q < 4; q++)
            C[g + (q >> 1) * 8][lane % 4 * 2 + (q & 1)] = w->c[lane][q];
    }
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < K; k++)
            for (int j = 0; j < 8; j++)
                C[i][j] += A[i][k] * B[k][j];
    for (int lane = 0; lane < 32; lane++)
        for (int q = 0; q < 4; q++)
            w->c[lane][q] = C[lane / 4 + (q >> 1) * 8][lane % 4 * 2 + (q & 1)];
}

template <class F>
inline void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, F compute)
{
    Warp *warp = now->warp;
    unsigned lane = now->lane;
    memcpy(warp->a[lane], a, sizeof a);
    warp->b[lane][0] = b0;
    warp->b[lane][1] = b1;
    memcpy(warp->c[lane], d, sizeof d);
    together(compute);
    memcpy(d, warp->c[lane], sizeof d);
}

} // namespace emulated

inline void mma_bf16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    emulated::mma(d, a, b0, b1, [](emulated::Warp *w) {
        emulated::multiply<16, 2>(w, [](unsigned v, int e) {
            return __uint_as_float(e ? v & 0xffff0000u : v << 16);
        });
    });
}
inline void mma_f16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    emulated::mma(d, a, b0, b1, [](emulated::Warp *w) {
        emulated::multiply<16, 2>(w, [](unsigned v, int e) {
            return emulated::of_half(e ? v >> 16 : v & 0xffffu);
        });
    });
}
/* The hardware reads the upper 19 bits. */
inline void mma_tf32(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    emulated::mma(d, a, b0, b1, [](emulated::Warp *w) {
        emulated::multiply<8, 1>(
            w, [](unsigned v, int) { return __uint_as_float(v & 0xffffe000u); });
    });
}
inline void mma_e4m3(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    emulated::mma(d, a, b0, b1, [](emulated::Warp *w) {
        emulated::multiply<32, 4>(
            w, [](unsigned v, int e) { return emulated::of_e4m3(v >> 8 * e & 0xffu); });
    });
}
inline void mma_e5m2(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    emulated::mma(d, a, b0, b1, [](emulated::Warp *w) {
        emulated::multiply<32, 4>(
            w, [](unsigned v, int e) { return emulated::of_e5m2(v >> 8 * e & 0xffu); });
    });
}
/* To nearest, halves away from zero. */
inline unsigned tf32_of_float(unsigned bits)
{
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return 0x7fffffffu;
    return (bits + 0x1000u) & ~0x1fffu;
}
inline float float_of_half(unsigned bits) { return emulated::of_half(bits); }
inline unsigned half_of_float(float value) { return emulated::to_half(value); }
inline float float_of_e4m3(unsigned bits) { return emulated::of_e4m3(bits); }
inline float float_of_e5m2(unsigned bits) { return emulated::of_e5m2(bits); }
/* By way of a format that keeps small numbers and rounds a sum of two floats once; the
   compiler knows as much, and would add floats. */
inline float exact_sum(float left, float right)
{
    volatile long double sum = (long double)left + right;
    return (float)sum;
}
inline float exact_product(float left, float right)
{
    volatile long double product = (long double)left * right;
    return (float)product;
}
inline float exact_quotient(float above, float below)
{
    volatile long double quotient = (long double)above / below;
    return (float)quotient;
}
inline float exact_root(float value)
{
    volatile long double root = sqrtl(value);
    return (float)root;
}

#include "wgmma_on_cpu.h"

/* Clusters. */
inline unsigned cluster_rank() { return emulated::now->block->rank; }
template <class T> inline void cluster_store(T *at, unsigned rank, T value)
{
    auto *block = emulated::now->block;
    ptrdiff_t offset = (unsigned char *)at - block->shared();
    *(T *)(block->group->blocks[rank]->shared() + offset) = value;
}
inline void cluster_arrive()
{
    auto &barrier = emulated::now->block->group->barrier;
    emulated::now->cluster_turn = barrier.turn;
    HOOK_ARRIVE(OF_CLUSTER);
    emulated::arrive(barrier);
    emulated::yield(); /* others may run ahead before what hides behind the barrier */
}
inline void cluster_wait()
{
    auto &barrier = emulated::now->block->group->barrier;
    while (barrier.turn == emulated::now->cluster_turn)
        emulated::yield();
    HOOK_PASS(OF_CLUSTER);
}

#define LAUNCHABLE(kernel)                                                             \
    extern "C" int launch_##kernel(const unsigned *grid, const unsigned *block,        \
                                   unsigned cluster, size_t shared, uint64_t seed,     \
                                   int workers, void **values)                         \
    {                                                                                  \
        return emulated::run(kernel, grid, block, cluster, shared, seed, workers,      \
                             values);                                                  \
    }
