/* Matrices of products in shared memory: where they lie, and what is read of them.
   Part of wgmma_on_cpu.h.

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
   multiple of 1024 has a base offset, which nobody here needs: it is refused. */
#pragma once

#include "wgmma_memory.h"

namespace emulated {

/* Where the 16 bytes of number `chunk` in a row of a matrix lie. */
unsigned address_of(uint64_t matrix, unsigned row, unsigned chunk)
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

float value_of_bf16(const unsigned char *at)
{
    return __uint_as_float((unsigned)(at[0] | at[1] << 8) << 16);
}
float value_of_f16(const unsigned char *at)
{
    return of_half((unsigned)(at[0] | at[1] << 8));
}

} // namespace emulated
