/* What is written to shared memory, and whether a product may read it. Part of
   wgmma_on_cpu.h.

   Rules: bytes of a matrix do not change, nor begin to, from the instruction to the
   wait for it (each change is a turn of its 16 bytes); what a thread's cp.async or
   store has written there is followed by its own fence.proxy.async. (Of a plain store
   in C++ it is known only that somebody has made one: any thread's fence will do. A
   translation of PTX calls `wrote`, which knows who.) */
#pragma once

#include "wgmma_units.h"

namespace emulated {

template <class F> inline void each_grain(const void *to, int bytes, F action)
{
    ptrdiff_t first = (const unsigned char *)to - now->block->shared();
    Units &all = units();
    for (ptrdiff_t at = first / 16; at * 16 < first + bytes; at++)
        if (first >= 0 && (size_t)at < all.grains.size())
            action(all, (unsigned)at);
}

void began(const void *to, int bytes)
{
    each_grain(to, bytes, [](Units &all, unsigned at) {
        all.grains[at].copies++;
        all.grains[at].turn++;
    });
}

void wrote(const void *to, int bytes)
{
    each_grain(to, bytes, [](Units &all, unsigned at) {
        all.grains[at].unfenced++;
        all.grains[at].turn++;
        all.written[thread_of_block()].push_back(at);
    });
}

void landed(const void *to, int bytes)
{
    each_grain(to, bytes, [](Units &all, unsigned at) { all.grains[at].copies--; });
    wrote(to, bytes);
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

} // namespace emulated
