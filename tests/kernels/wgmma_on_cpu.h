/* wgmma on a processor: products of four warps with matrices in shared memory, which
   are read at some time between the instruction and the wait for it. Part of
   cuda_on_cpu.h.

   What the PTX ISA (9.7.15, "wgmma") says, and what is done with it here:

   A matrix is 64 bits: begin (bits 0-13), leading offset (16-29), stride offset
   (32-45), each in units of 16 bytes of an 18-bit address; base offset (49-51); swizzle
   (62-63): 0 none, 1 of 128 bytes, 2 of 64, 3 of 32. K-major (not transposed), the 16
   bytes of number c in row r lie, before swizzling, at

       begin + r % 8 * width + r / 8 * stride + c * 16    width 128, 64, 32
       begin + r % 8 * 16    + r / 8 * stride + c * leading       without swizzle

   (canonical layouts ((8,m),(T,2k)):((8T,SBO),(1,T)) and so on: the leading offset is
   used without swizzle alone), and then bits 4-6 (4-5, 4) of that address are XORed
   with bits 7-9 (7-8, 7) of it: Swizzle<3,4,3> (2, 1). A pattern that begins at no
   multiple of 1024 has a base offset, which nobody here needs: it is refused.

   d has 64 rows: warp w of the four rows 16 w .., lane l rows l / 4 and l / 4 + 8, of
   every eight columns 2 (l % 4) and the next; d[4 j + 2 h + e] is row l / 4 + 8 h,
   column 8 j + 2 (l % 4) + e.

   Rules, of which each is a fault here, said by `wgmma_said`, and makes sums that are
   no numbers: four warps, the first of a number divisible by four, give the same
   instructions; wgmma.fence stands between other uses of d and the first product; d is
   not touched before wait_group has waited for the last; bytes of a matrix do not
   change, nor begin to, from the instruction to that wait; what a thread's cp.async or
   store has written there is followed by its own fence.proxy.async. (Of a plain store
   in C++ it is known only that somebody has made one: any thread's fence will do. A
   translation of PTX calls `wrote`, which knows who.)

   Watched where WGMMA is defined: what is written to shared memory is of no interest to
   kernels without. */
#pragma once

#include <array>

namespace emulated {

/* Shared memory begins somewhere: as CUDA has it behind 1 KiB of its own, not always at
   a multiple of what a pattern needs. */
inline unsigned window()
{
    return 1024u + 128u * (unsigned)(now->block->group->launch->seed * 3 % 8);
}

} // namespace emulated

#if !defined(WGMMA)
namespace emulated {
inline void began(const void *, int) {}
inline void wrote(const void *, int) {}
inline void landed(const void *, int) {}
} // namespace emulated
extern "C" const char *wgmma_said() { return nullptr; }
#else
namespace emulated {

/* 16 bytes of shared memory. */
struct Grain {
    unsigned copies = 0;   /* on the way there */
    unsigned unfenced = 0; /* writes that no fence of their thread has followed */
    unsigned turn = 0;     /* how often somebody began to write there, or did */
    unsigned fences = 0;   /* of the block, when a product last looked here */
    unsigned char seen[16]; /* what it saw */
};

typedef float (*Value)(const unsigned char *);

struct Product {
    uint64_t a, b;
    unsigned group;
    Value value;
    std::vector<unsigned char> bytes; /* of 16 rows of a, of all of b, as they were */
    std::vector<unsigned> turns;
    bool wrong;
};

/* What one warp has asked for. */
struct Quarter {
    unsigned number = 0, issued = 0, groups = 0;
    bool is_fenced = false, is_lent = false;
    int count = 0;                 /* registers of d */
    std::vector<float *> d[32];    /* of each lane */
    std::vector<float *> asked[32]; /* the operands of one instruction */
    uint64_t a[32], b[32];
    std::vector<float> sums[32];   /* what d would hold */
    std::vector<Product> products; /* not waited for yet */
};

/* The units of a block that are not threads. */
struct Units {
    std::vector<Grain> grains;
    std::vector<std::vector<unsigned>> written; /* grains, by each thread, not fenced */
    std::vector<Quarter> quarters;
    std::vector<std::vector<std::array<uint64_t, 3>>> said; /* by each four warps */
    unsigned fences = 0;
};

inline std::atomic<const char *> said_of_wgmma{nullptr};
inline bool fault(const char *text)
{
    const char *none = nullptr;
    said_of_wgmma.compare_exchange_strong(none, text);
    return false;
}

inline Units &units()
{
    Block &block = *now->block;
    if (!block.units) {
        Launch &launch = *block.group->launch;
        block.units = std::make_shared<Units>();
        block.units->grains.resize(launch.shared / 16 + 1);
        block.units->written.resize(block.warps.size() * 32);
        block.units->quarters.resize(block.warps.size());
        block.units->said.resize(block.warps.size() / 4 + 1);
        for (unsigned i = 0; i < block.warps.size(); i++)
            block.units->quarters[i].number = i;
        for (auto &grain : block.units->grains)
            memset(grain.seen, POISON, sizeof grain.seen);
    }
    return *block.units;
}

inline unsigned warp_of_block()
{
    return (unsigned)(now->warp - &now->block->warps[0]);
}
inline unsigned thread_of_block() { return warp_of_block() * 32 + now->lane; }
inline Quarter &quarter() { return units().quarters[warp_of_block()]; }

template <class F> inline void each_grain(const void *to, int bytes, F action)
{
    ptrdiff_t first = (const unsigned char *)to - now->block->shared();
    Units &all = units();
    for (ptrdiff_t at = first / 16; at * 16 < first + bytes; at++)
        if (first >= 0 && (size_t)at < all.grains.size())
            action(all, (unsigned)at);
}

inline void began(const void *to, int bytes)
{
    each_grain(to, bytes, [](Units &all, unsigned at) {
        all.grains[at].copies++;
        all.grains[at].turn++;
    });
}

/* By this thread, not by a unit. */
inline void wrote(const void *to, int bytes)
{
    each_grain(to, bytes, [](Units &all, unsigned at) {
        all.grains[at].unfenced++;
        all.grains[at].turn++;
        all.written[thread_of_block()].push_back(at);
    });
}

inline void landed(const void *to, int bytes)
{
    each_grain(to, bytes, [](Units &all, unsigned at) { all.grains[at].copies--; });
    wrote(to, bytes);
}

/* Where the 16 bytes of number `chunk` in a row of a matrix lie. */
inline unsigned address_of(uint64_t matrix, unsigned row, unsigned chunk)
{
    constexpr unsigned WIDTH[4] = {16, 128, 64, 32}, MASK[4] = {0, 7, 3, 1};
    unsigned begin = (unsigned)(matrix & 0x3fff) << 4, mode = (unsigned)(matrix >> 62);
    unsigned leading = (unsigned)(matrix >> 16 & 0x3fff) << 4;
    unsigned stride = (unsigned)(matrix >> 32 & 0x3fff) << 4;
    unsigned linear = begin + row % 8 * WIDTH[mode] + row / 8 * stride;
    linear += chunk * (mode ? 16 : leading);
    return linear ^ (linear >> 7 & MASK[mode]) << 4;
}

inline bool is_known(uint64_t matrix)
{
    constexpr uint64_t EACH = 0x3fff, FIELDS = EACH | EACH << 16 | EACH << 32;
    bool is_plain = !(matrix & ~(FIELDS | 3ull << 62));
    return is_plain || fault("a matrix with a base offset, or bits that are none");
}

/* Whether a unit sees what threads wrote there. */
inline bool is_seen(Units &all, Grain &grain, const unsigned char *held)
{
    if (grain.copies)
        return fault("a product reads what a copy is still on its way to");
    if (grain.unfenced)
        return fault("a product reads what no fence.proxy.async has followed");
    bool changed = memcmp(grain.seen, held, 16) != 0;
    bool is_old = grain.fences == all.fences;
    grain.fences = all.fences;
    memcpy(grain.seen, held, 16);
    return !changed || !is_old ||
           fault("a product reads a store without fence.proxy.async");
}

/* 32 bytes of each of some rows, as they are now. */
inline void read_rows(Product &product, uint64_t matrix, unsigned first, unsigned count,
                      bool is_late)
{
    unsigned char *shared = now->block->shared();
    for (unsigned at = first * 2; at < (first + count) * 2; at++) {
        unsigned place = address_of(matrix, at / 2, at % 2) - window();
        Units &all = units();
        bool inside = place + 16u <= now->block->group->launch->shared;
        if (!inside)
            product.wrong = !fault("a product reads behind the shared memory");
        else if (!is_late)
            product.wrong |= !is_seen(all, all.grains[place / 16], shared + place);
        const unsigned char *from = inside ? shared + place : shared;
        if (inside)
            HOOK_UNIT(from, 16);
        product.bytes.insert(product.bytes.end(), from, from + 16);
        product.turns.push_back(all.grains[inside ? place / 16 : 0].turn);
    }
}

inline void read_matrices(Quarter &own, Product &product, bool is_late)
{
    product.bytes.clear();
    product.turns.clear();
    read_rows(product, product.a, own.number % 4 * 16, 16, is_late);
    read_rows(product, product.b, 0, (unsigned)own.count * 2, is_late);
}

/* All four warps ask for the same, in the same order. */
inline bool is_aligned(Quarter &own, uint64_t a, uint64_t b)
{
    auto &said = units().said[own.number / 4];
    std::array<uint64_t, 3> asked = {a, b, (uint64_t)own.count};
    if (own.number / 4 * 4 + 4 > now->block->warps.size())
        return fault("a product of fewer than four warps");
    for (unsigned lane = 0; lane < 32; lane++)
        if (own.a[lane] != a || own.b[lane] != b)
            return fault("lanes that ask for different products");
    if (own.issued == said.size())
        said.push_back(asked);
    return said[own.issued++] == asked ? true
                                       : fault("warps that ask for different products");
}

/* Registers of products hold what is no number; arithmetic changes it. */
constexpr unsigned LENT = 0xffbfffffu;
inline bool is_untouched(Quarter &own)
{
    for (unsigned lane = 0; lane < 32; lane++)
        for (int i = 0; i < own.count; i++) {
            unsigned held;
            memcpy(&held, own.d[lane][(size_t)i], 4);
            if (held != LENT)
                return fault("accumulators touched before wgmma.wait_group");
        }
    return true;
}

/* They belong to products from now on. */
inline bool lend(Quarter &own, const std::vector<float *> (&d)[32])
{
    if (own.is_lent)
        for (unsigned lane = 0; lane < 32; lane++)
            if (own.d[lane] != d[lane])
                return fault("a product with other accumulators before the wait");
    if (own.is_lent)
        return is_untouched(own);
    own.is_lent = true;
    own.count = (int)d[0].size();
    for (unsigned lane = 0; lane < 32; lane++) {
        own.d[lane] = d[lane];
        own.sums[lane].clear();
        for (float *one : d[lane]) {
            own.sums[lane].push_back(*one);
            memcpy(one, &LENT, 4);
        }
    }
    return own.is_fenced || fault("accumulators of a product without wgmma.fence");
}

inline void multiply(Quarter &own, const Product &product)
{
    int columns = own.count * 2;
    std::vector<float> a(16 * 16), b((size_t)columns * 16), row((size_t)columns);
    for (int i = 0; i < 16 * 16; i++)
        a[(size_t)i] = product.value(&product.bytes[(size_t)i * 2]);
    const unsigned char *of_b = &product.bytes[16 * 32];
    for (int i = 0; i < columns * 16; i++) /* the columns of one k side by side */
        b[(size_t)(i % 16 * columns + i / 16)] = product.value(of_b + i * 2);
    for (int i = 0; i < 16; i++) {
        auto at = [&](int j) -> float & {
            auto &sums = own.sums[i % 8 * 4 + j % 8 / 2];
            return sums[(size_t)(j / 8 * 4 + i / 8 * 2 + j % 2)];
        };
        for (int j = 0; j < columns; j++)
            row[(size_t)j] = at(j);
        for (int k = 0; k < 16; k++)
            for (int j = 0; j < columns; j++)
                row[(size_t)j] +=
                    a[(size_t)(i * 16 + k)] * b[(size_t)(k * columns + j)];
        for (int j = 0; j < columns; j++)
            at(j) = row[(size_t)j];
    }
}

inline void spoil(Quarter &own)
{
    for (auto &sums : own.sums)
        sums.assign(sums.size(), __uint_as_float(0x7fc00000u));
}

/* Read as late as may be, it is to be what it was. */
inline void finish(Quarter &own, Product &product)
{
    Product late = product;
    read_matrices(own, late, true);
    if (late.bytes != product.bytes || late.turns != product.turns)
        product.wrong = !fault("a matrix that was written to before wgmma.wait_group");
    multiply(own, product);
    if (product.wrong)
        spoil(own);
}

inline void give_back(Quarter &own)
{
    if (!is_untouched(own))
        spoil(own);
    for (unsigned lane = 0; lane < 32; lane++)
        for (size_t i = 0; i < own.d[lane].size(); i++)
            *own.d[lane][i] = own.sums[lane][i];
    own.is_lent = own.is_fenced = false;
}

inline void issue(Quarter &own, Value value)
{
    Product product{own.a[0], own.b[0], own.groups, value, {}, {}, false};
    product.wrong = !lend(own, own.asked);
    product.wrong |= !is_aligned(own, product.a, product.b);
    product.wrong |= !is_known(product.a) || !is_known(product.b);
    read_matrices(own, product, false);
    own.products.push_back(std::move(product));
}

/* Until `left` of the groups are under way. */
inline void complete(Quarter &own, unsigned left)
{
    size_t done = 0;
    while (done < own.products.size() && own.products[done].group + left < own.groups)
        finish(own, own.products[done++]);
    own.products.erase(own.products.begin(), own.products.begin() + (long)done);
    if (own.is_lent && own.products.empty())
        give_back(own);
}

inline float value_of_bf16(const unsigned char *at)
{
    return __uint_as_float((unsigned)(at[0] | at[1] << 8) << 16);
}
inline float value_of_f16(const unsigned char *at)
{
    return of_half((unsigned)(at[0] | at[1] << 8));
}

inline void wgmma(std::vector<float *> d, uint64_t a, uint64_t b, Value value)
{
    Quarter &own = quarter();
    own.asked[now->lane] = std::move(d);
    own.a[now->lane] = a;
    own.b[now->lane] = b;
    together([&](Warp *) { issue(own, value); });
}
template <int COUNT>
inline void wgmma(float (&d)[COUNT], uint64_t a, uint64_t b, Value value)
{
    std::vector<float *> places(COUNT);
    for (int i = 0; i < COUNT; i++)
        places[(size_t)i] = d + i;
    wgmma(std::move(places), a, b, value);
}

} // namespace emulated

/* The first rule that was broken since it was last asked for, or NULL. */
extern "C" const char *wgmma_said()
{
    return emulated::said_of_wgmma.exchange(nullptr);
}

inline unsigned in_shared(const void *at)
{
    auto *from = emulated::now->block->shared();
    return emulated::window() + (unsigned)((const unsigned char *)at - from);
}
inline void fence_for_units()
{
    auto &all = emulated::units();
    for (unsigned at : all.written[emulated::thread_of_block()])
        all.grains[at].unfenced--;
    all.written[emulated::thread_of_block()].clear();
    all.fences++;
}
inline void wgmma_begin()
{
    emulated::together([](emulated::Warp *) { emulated::quarter().is_fenced = true; });
}
inline void wgmma_commit()
{
    emulated::together([](emulated::Warp *) { emulated::quarter().groups++; });
}
template <int LEFT> inline void wgmma_wait()
{
    emulated::together(
        [](emulated::Warp *) { emulated::complete(emulated::quarter(), LEFT); });
}
template <int COUNT> inline void wgmma_bf16(float (&d)[COUNT], uint64_t a, uint64_t b)
{
    emulated::wgmma(d, a, b, emulated::value_of_bf16);
}
template <int COUNT> inline void wgmma_f16(float (&d)[COUNT], uint64_t a, uint64_t b)
{
    emulated::wgmma(d, a, b, emulated::value_of_f16);
}
template <int COUNT> inline void held(float (&)[COUNT]) {}
#endif
