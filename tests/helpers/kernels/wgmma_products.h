/* Products of four warps, from the instruction to the wait for it. Part of
   wgmma_on_cpu.h.

   Rule: four warps, the first of a number divisible by four, give the same
   instructions. What is read is read at the instruction, and again at the wait. */
#pragma once

#include "wgmma_matrix.h"
#include "wgmma_registers.h"

namespace emulated {

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

} // namespace emulated
