/* wgmma in PTX: accumulators are registers, which products have for a while. Part of
   on_cpu.h for texts that have such instructions. */
#pragma once

namespace ptx {

/* The emulation wants them side by side, where they stay: it looks whether somebody has
   touched them. */
struct Lent {
    f32 values[128];
    f32 *of[128];
    int count = 0;

    void collect()
    {
        for (int i = 0; i < count; i++)
            values[i] = *of[i];
    }
    void spread()
    {
        for (int i = 0; i < count; i++)
            *of[i] = values[i];
    }
};

/* The groups of operands in the order of the text: d, a, b. */
template <int COUNT, class... R>
inline void multiply_async(Lent &lent, void (*multiply)(f32 (&)[COUNT], u64, u64), u64 a,
                           u64 b, R &...d)
{
    static_assert(sizeof...(d) == COUNT, "registers of the shape");
    f32 *of[] = {&d...};
    if (lent.count && (lent.count != COUNT || memcmp(lent.of, of, sizeof of)))
        emulated::fault("products under way add to other registers");
    memcpy(lent.of, of, sizeof of);
    lent.count = COUNT;
    lent.collect();
    multiply(reinterpret_cast<f32(&)[COUNT]>(lent.values), a, b);
    lent.spread();
}

template <int LEFT> inline void wait_for_products(Lent &lent)
{
    lent.collect();
    wgmma_wait<LEFT>();
    lent.spread();
    if (!emulated::quarter().is_lent)
        lent.count = 0;
}

} // namespace ptx
