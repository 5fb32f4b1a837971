/* Accumulators of products: which lane has which sums, and to whom they belong. Part of
   wgmma_on_cpu.h.

   d has 64 rows: warp w of the four rows 16 w .., lane l rows l / 4 and l / 4 + 8, of
   every eight columns 2 (l % 4) and the next; d[4 j + 2 h + e] is row l / 4 + 8 h,
   column 8 j + 2 (l % 4) + e.

   Rules: wgmma.fence stands between other uses of d and the first product; d is not
   touched before wait_group has waited for the last. */
#pragma once

#include "wgmma_units.h"

namespace emulated {

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

inline void give_back(Quarter &own)
{
    if (!is_untouched(own))
        spoil(own);
    for (unsigned lane = 0; lane < 32; lane++)
        for (size_t i = 0; i < own.d[lane].size(); i++)
            *own.d[lane][i] = own.sums[lane][i];
    own.is_lent = own.is_fenced = false;
}

} // namespace emulated
