/* What instructions of PTX that reach memory or other threads mean, one statement each,
   for the translation of tests/helpers/kernels/ptx; those that compute values are in values.h.

   Threads, barriers, shared memory and what a warp does together are those of
   cuda_on_cpu.h. Addresses of shared memory are offsets that begin at start(); one in
   the shared memory of another block of the cluster has that block's rank, plus one, in
   its upper bits. */
#pragma once
#include "values.h"
#include <cstdio>

/* What watches may be defined by a header before this one; empty without. */
enum { GLOBAL, SHARED, CLUSTER };
enum { READ, WRITE, ATOMIC, ACQUIRE };
#ifndef WATCH /* each thread, before it is done: what, how, where on the host */
#define WATCH(space, kind, address, bytes, number)
#endif
#ifndef WATCH_COPY /* cp.async: `bytes` of `whole` come from memory */
#define WATCH_COPY(to, from, bytes, whole, number)
#endif
#ifndef WATCH_ISSUE /* each thread, every instruction, whatever its guard says */
#define WATCH_ISSUE(number)
#endif

namespace ptx {

/* ---- memory ---- */

/* Where shared memory begins: what is below belongs to the system. */
inline u32 start() { return emulated::window(); }
constexpr u32 IN_BLOCK = 24; /* bits of an address; above: rank + 1, or 0 for the own */

inline u64 address(u64 place) { return place; }
inline emulated::Block *own() { return emulated::now->block; }
inline unsigned char *global_at(u64 place) { return (unsigned char *)place; }
inline unsigned char *shared_at(u64 place) { return own()->shared() + place - start(); }
inline u64 from_shared(u64 place) { return (u64)shared_at(place); }
inline u64 to_shared(u64 place) { return place - (u64)own()->shared() + start(); }
inline u32 map_to(u32 place, u32 rank)
{
    return (rank + 1) << IN_BLOCK | (place & ((1u << IN_BLOCK) - 1u));
}
inline unsigned char *cluster_at(u64 place)
{
    u64 rank = place >> IN_BLOCK ? (place >> IN_BLOCK) - 1 : own()->rank;
    place &= (1u << IN_BLOCK) - 1u;
    return own()->group->blocks.at(rank)->shared() + place - start();
}
/* What a generic address is one of. */
inline int space_of(const unsigned char *at)
{
    for (auto &block : own()->group->blocks) {
        if (at >= block->room.data() && at < block->room.data() + block->room.size())
            return block.get() == own() ? SHARED : CLUSTER;
    }
    return GLOBAL;
}

template <class T, class... R> inline void take(const void *at, R &...to)
{
    const char *next = (const char *)at;
    auto one = [&](auto &reg) {
        T value;
        memcpy(&value, next, sizeof value);
        next += sizeof value;
        put<T>(reg, value);
    };
    (one(to), ...);
}
template <class... T> inline void give(void *at, T... values)
{
    char *next = (char *)at;
    auto one = [&](auto value) {
        memcpy(next, &value, sizeof value);
        next += sizeof value;
    };
    (one(values), ...);
}

/* ---- threads of a warp, a block, a cluster ---- */

[[noreturn]] inline void wrong(const char *what)
{
    fprintf(stderr, "PTX: %s\n", what);
    abort();
}
/* The emulation knows only warps as a whole. */
inline void all_of(u32 mask)
{
    if (mask != 0xffffffffu)
        wrong("a mask that is not the whole warp");
}
enum Way { UP, DOWNWARDS, BFLY, IDX };
/* c: in bits 0 to 4 the last lane that may be asked, in 8 to 12 which bits of a lane's
   number name its segment. */
inline u32 shuffle(Way way, u32 a, u32 b, u32 c, u32 mask, bool &inside)
{
    all_of(mask);
    u32 lane = emulated::now->lane, clamp = c & 31, segment = c >> 8 & 31;
    u32 first = lane & segment, last = first | (clamp & ~segment);
    b &= 31;
    u32 from = way == BFLY   ? lane ^ b
               : way == IDX  ? first | (b & ~segment)
               : way == UP   ? lane - b
                             : lane + b;
    inside = way == UP ? (s32)from >= (s32)last : from <= last;
    return emulated::from_lane(a, inside ? from : lane);
}
inline void warp_barrier(u32 mask)
{
    all_of(mask);
    __syncwarp();
}

typedef void Multiply(float (&)[4], const unsigned (&)[4], unsigned, unsigned);
/* The groups of operands in the order of the text: d, a, b, c. */
struct Four {
    f32 value[4];
};
inline Four multiplied(Multiply multiply, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0,
                       u32 b1, f32 c0, f32 c1, f32 c2, f32 c3)
{
    Four d{{c0, c1, c2, c3}};
    const unsigned a[4] = {a0, a1, a2, a3};
    multiply(d.value, a, b0, b1);
    return d;
}

} // namespace ptx

/* ---- one statement an instruction ---- */

#define LOAD(space, kind, type, count, number, place, ...)                             \
    do {                                                                               \
        auto *at_ = place;                                                             \
        WATCH(space, kind, at_, count * (int)sizeof(type), number);                    \
        ptx::take<type>(at_, __VA_ARGS__);                                             \
    } while (0)
#define STORE(space, type, count, number, place, ...)                                  \
    do {                                                                               \
        auto *at_ = place;                                                             \
        WATCH(space, WRITE, at_, count * (int)sizeof(type), number);                   \
        ptx::give(at_, __VA_ARGS__);                                                   \
        emulated::wrote(at_, count * (int)sizeof(type));                               \
    } while (0)
#define LOAD_ACQUIRE(type, number, place, to)                                          \
    do {                                                                               \
        type *at_ = (type *)place;                                                     \
        WATCH(GLOBAL, ACQUIRE, at_, (int)sizeof(type), number);                        \
        ptx::put<type>(to, __atomic_load_n(at_, __ATOMIC_ACQUIRE));                    \
    } while (0)
#define ATOM(function, type, number, place, to, value)                                 \
    do {                                                                               \
        type *at_ = (type *)place;                                                     \
        WATCH(GLOBAL, ATOMIC, at_, (int)sizeof(type), number);                         \
        ptx::put<type>(to, function(at_, value, __ATOMIC_SEQ_CST));                    \
    } while (0)
#define COPY(number, to_place, from_place, count)                               \
    do {                                                                               \
        auto *to_ = to_place, *from_ = from_place;                                     \
        int bytes_ = (int)(count);                                                     \
        WATCH_COPY(to_, from_, bytes_, 16, number);                                 \
        copy_async_16(to_, from_, bytes_);                                             \
    } while (0)
#define LDMATRIX(number, place, r0, r1, r2, r3)                                        \
    do {                                                                               \
        auto *at_ = place;                                                             \
        unsigned to_[4];                                                               \
        WATCH(SHARED, READ, at_, 16, number);                                          \
        load_matrix_4(to_, at_);                                                       \
        ptx::put<u32>(r0, to_[0]), ptx::put<u32>(r1, to_[1]);                          \
        ptx::put<u32>(r2, to_[2]), ptx::put<u32>(r3, to_[3]);                          \
    } while (0)
#define MMA(multiply, d0, d1, d2, d3, ...)                                             \
    do {                                                                               \
        ptx::Four d_ = ptx::multiplied(multiply, __VA_ARGS__);                         \
        ptx::put<f32>(d0, d_.value[0]), ptx::put<f32>(d1, d_.value[1]);                \
        ptx::put<f32>(d2, d_.value[2]), ptx::put<f32>(d3, d_.value[3]);                \
    } while (0)
/* The accumulators, as they stand in the text; then both matrices. */
#define WGMMA_ASYNC(kind, a, b, ...)                                                   \
    do {                                                                               \
        f32 *const d_[] = {__VA_ARGS__};                                               \
        constexpr int count_ = sizeof d_ / sizeof *d_;                                 \
        emulated::wgmma({d_, d_ + count_}, a, b, emulated::value_of_##kind);           \
    } while (0)
