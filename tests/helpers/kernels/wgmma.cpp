/* Products of wgmma, compiled once for all kernels that ask for them. Part of
   wgmma_on_cpu.h. */
#include "wgmma_products.h"

namespace emulated {

void wgmma(std::vector<float *> d, uint64_t a, uint64_t b, Value value)
{
    Quarter &own = quarter();
    own.asked[now->lane] = std::move(d);
    own.a[now->lane] = a;
    own.b[now->lane] = b;
    together([&](Warp *) { issue(own, value); });
}

void wait_for_products(unsigned groups_left)
{
    together([=](Warp *) { complete(quarter(), groups_left); });
}

} // namespace emulated

void fence_for_units()
{
    auto &all = emulated::units();
    for (unsigned at : all.written[emulated::thread_of_block()])
        all.grains[at].unfenced--;
    all.written[emulated::thread_of_block()].clear();
    all.fences++;
}
void wgmma_begin()
{
    emulated::together([](emulated::Warp *) { emulated::quarter().is_fenced = true; });
}
void wgmma_commit()
{
    emulated::together([](emulated::Warp *) { emulated::quarter().groups++; });
}

/* The first rule that was broken since it was last asked for, or NULL. */
extern "C" const char *wgmma_said()
{
    return emulated::said_of_wgmma.exchange(nullptr);
}
