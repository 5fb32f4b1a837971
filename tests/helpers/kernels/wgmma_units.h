/* What is kept of a block whose warps ask for products, and the first fault that was
   found. Part of wgmma_on_cpu.h. */
#pragma once

#include <array>

namespace emulated {

/* 16 bytes of shared memory. */
struct Grain {
    unsigned copies = 0;   /* on the way there */
    unsigned unfenced = 0; /* writes that no fence of their thread has followed */
    unsigned turn = 0;     /* how often somebody began to write there, or did */
    unsigned fences = 0;   /* of the block, when a product last looked here */
    unsigned char seen[16]; /* what it saw */
};

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

} // namespace emulated
