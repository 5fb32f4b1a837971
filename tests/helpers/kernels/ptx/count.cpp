/* How the requests of count.h are counted: compiled once for all kernels. */
#include <algorithm>
#include <map>
#include <unordered_map>
#include <unordered_set>

namespace counted {

enum { ISSUED, THREADS, REQUESTS, ASKED, USEFUL, SECTORS, PASSES, FEWEST, FROM_L2, FIELDS };
enum { READ_ONCE, WRITTEN_ONCE, READ_BYTES, READ_SECTORS, READ_FROM_L2, OF_ARRAY };

struct Array {
    uintptr_t first;
    size_t bytes;
    std::vector<bool> read, written;
    uint64_t of[OF_ARRAY];
};

/* What the lanes of a warp did together. */
struct Request {
    uint32_t mask = 0, kind = 0, bytes[32] = {};
    uintptr_t at[32] = {};
};

typedef std::unordered_map<uint64_t, Request> Open; /* instruction << 32 | k */

struct OfWarp {
    std::vector<uint32_t> issued, met, copied; /* 32 of each instruction */
    Open open[2];                              /* what is copied to is one of its own */
};

unsigned instructions;
std::vector<uint64_t> table; /* FIELDS of each: accesses, then of what is copied */
std::vector<uint8_t> through_l1;
std::vector<Array> arrays;
std::map<std::pair<unsigned, unsigned>, OfWarp> warps; /* (rank, warp) */
std::map<unsigned, std::unordered_set<uintptr_t>> seen; /* of a block */
std::vector<std::vector<uint32_t>> traces;              /* of threads */
bool traced;
dim3 first_block;

Array *array_of(uintptr_t at)
{
    for (Array &one : arrays)
        if (at - one.first < one.bytes)
            return &one;
    return nullptr;
}

/* 32 bytes each, every one once. */
std::vector<uintptr_t> sectors_of(const Request &all, uint64_t &useful)
{
    std::vector<std::pair<uintptr_t, uintptr_t>> spans;
    std::vector<uintptr_t> sectors;
    for (int lane = 0; lane < 32; lane++)
        if (all.mask >> lane & 1 && all.bytes[lane]) {
            uintptr_t first = all.at[lane], end = first + all.bytes[lane];
            spans.push_back({first, end});
            for (uintptr_t s = first / 32; s <= (end - 1) / 32; s++)
                sectors.push_back(s);
        }
    std::sort(spans.begin(), spans.end());
    uintptr_t reached = 0;
    for (auto &[first, end] : spans) {
        uintptr_t from = std::max(first, reached);
        useful += end > from ? end - from : 0;
        reached = std::max(reached, end);
    }
    std::sort(sectors.begin(), sectors.end());
    sectors.erase(std::unique(sectors.begin(), sectors.end()), sectors.end());
    return sectors;
}

void at_arrays(const Request &all, const std::vector<uintptr_t> &sectors,
                      uint64_t useful, uint64_t from_l2)
{
    Array *one = nullptr;
    for (int lane = 0; lane < 32; lane++)
        if (all.mask >> lane & 1 && all.bytes[lane] && (one = array_of(all.at[lane]))) {
            auto &bits = all.kind == 1 ? one->written : one->read;
            uint64_t &once = one->of[all.kind == 1 ? WRITTEN_ONCE : READ_ONCE];
            for (uint32_t i = 0; i < all.bytes[lane]; i++) {
                size_t place = all.at[lane] - one->first + i;
                once += !bits[place];
                bits[place] = true;
            }
        }
    if (!one || all.kind == 1)
        return;
    one->of[READ_BYTES] += useful;
    one->of[READ_SECTORS] += sectors.size();
    one->of[READ_FROM_L2] += from_l2;
}

void global(const Request &all, uint64_t *row, unsigned rank, bool cached)
{
    uint64_t useful = 0, from_l2 = 0;
    auto sectors = sectors_of(all, useful);
    for (uintptr_t sector : sectors)
        from_l2 += !cached || seen[rank].insert(sector).second;
    row[USEFUL] += useful;
    row[SECTORS] += sectors.size();
    row[FROM_L2] += from_l2;
    at_arrays(all, sectors, useful, from_l2);
}

/* Passes: lanes with 16 bytes go in four groups of eight, with 8 in two of 16. In a group
   a bank gives one word at a time; the same word serves all that ask for it. */
void banks(const Request &all, uint64_t *row)
{
    unsigned widest = *std::max_element(all.bytes, all.bytes + 32);
    unsigned group = widest > 8 ? 8 : widest > 4 ? 16 : 32;
    for (unsigned first = 0; first < 32; first += group) {
        std::vector<uintptr_t> words;
        for (unsigned lane = first; lane < first + group; lane++)
            for (unsigned i = 0; all.mask >> lane & 1 && i < all.bytes[lane]; i += 4)
                words.push_back((all.at[lane] + i) / 4);
        std::sort(words.begin(), words.end());
        words.erase(std::unique(words.begin(), words.end()), words.end());
        unsigned load[32] = {};
        for (uintptr_t word : words)
            load[word % 32]++;
        row[PASSES] += *std::max_element(load, load + 32);
        row[FEWEST] += (words.size() + 31) / 32;
    }
}

void finish(const Request &all, unsigned number, unsigned side, unsigned rank)
{
    uint64_t *row = &table[(side * instructions + number) * FIELDS];
    row[REQUESTS]++;
    for (int lane = 0; lane < 32; lane++)
        row[ASKED] += all.mask >> lane & 1 ? all.bytes[lane] : 0;
    if (all.kind >> 8 == TO_GLOBAL) {
        Request one = all;
        one.kind &= 0xff;
        global(one, row, rank, through_l1[number]);
        if (through_l1[number]) /* it has the banks of shared memory */
            banks(one, row);
    } else {
        banks(all, row);
    }
}

void flush()
{
    for (auto &[place, own] : warps) {
        for (unsigned side = 0; side < 2; side++)
            for (auto &[key, all] : own.open[side])
                finish(all, (unsigned)(key >> 32), side, place.first);
        for (unsigned n = 0; n < instructions; n++) {
            uint32_t *each = &own.issued[32 * n];
            table[n * FIELDS + ISSUED] += *std::max_element(each, each + 32);
            for (int lane = 0; lane < 32; lane++)
                table[n * FIELDS + THREADS] += each[lane];
        }
    }
    warps.clear();
    seen.clear();
}

unsigned thread_of(const emulated::Fiber *now)
{
    const dim3 &size = now->block->group->launch->block;
    return now->place.x + size.x * (now->place.y + size.y * now->place.z);
}

OfWarp &warp_of_now()
{
    auto *now = emulated::now;
    const dim3 &first = now->block->group->blocks[0]->number;
    if (memcmp(&first, &first_block, sizeof first)) {
        flush();
        first_block = first;
    }
    OfWarp &own = warps[{now->block->rank, thread_of(now) / 32}];
    if (own.issued.empty())
        for (auto *each : {&own.issued, &own.met, &own.copied})
            each->resize(32 * instructions);
    return own;
}

void issue(unsigned number)
{
    auto *now = emulated::now;
    OfWarp &own = warp_of_now();
    own.issued[32 * number + now->lane]++;
    if (traced) {
        auto *launch = now->block->group->launch;
        unsigned thread = now->block->rank * launch->block.x + thread_of(now);
        if (traces.size() <= thread)
            traces.resize(thread + 1);
        traces[thread].push_back(number);
    }
}

void access(unsigned space, unsigned kind, const void *at, unsigned bytes,
                   unsigned number, unsigned side)
{
    auto *now = emulated::now;
    OfWarp &own = warp_of_now();
    uint32_t k = (side ? own.copied : own.met)[32 * number + now->lane]++;
    uint64_t key = (uint64_t)number << 32 | k;
    Request &all = own.open[side][key];
    uintptr_t place = (uintptr_t)at;
    if (space != TO_GLOBAL) /* banks are counted from where a block's memory begins */
        place -= (uintptr_t)now->block->shared();
    all.mask |= 1u << now->lane;
    all.kind = space << 8 | kind;
    all.at[now->lane] = place;
    all.bytes[now->lane] = bytes;
    if (all.mask == 0xffffffffu) {
        finish(all, number, side, now->block->rank);
        own.open[side].erase(key);
    }
}

void copy(const void *to, const void *from, unsigned bytes, unsigned whole,
                 unsigned number)
{
    access(TO_GLOBAL, 0, from, bytes, number);
    access(TO_SHARED, 1, to, whole, number, 1);
}

} // namespace counted

extern "C" void count_begin(unsigned instructions, const uint8_t *through_l1,
                            unsigned arrays, const uint64_t *firsts,
                            const uint64_t *bytes, int traced)
{
    using namespace counted;
    counted::instructions = instructions;
    counted::traced = traced;
    table.assign((size_t)2 * instructions * FIELDS, 0);
    counted::through_l1.assign(through_l1, through_l1 + instructions);
    warps.clear(), seen.clear(), traces.clear(), counted::arrays.clear();
    first_block = dim3{~0u, 0, 0};
    for (unsigned i = 0; i < arrays; i++)
        counted::arrays.push_back({(uintptr_t)firsts[i], (size_t)bytes[i],
                                   std::vector<bool>(bytes[i]),
                                   std::vector<bool>(bytes[i]),
                                   {}});
}
extern "C" void count_end(uint64_t *to, uint64_t *of_arrays)
{
    using namespace counted;
    flush();
    std::copy(table.begin(), table.end(), to);
    for (Array &one : arrays)
        of_arrays = std::copy(one.of, one.of + OF_ARRAY, of_arrays);
}
extern "C" unsigned count_trace(unsigned thread, uint32_t *to)
{
    if (thread >= counted::traces.size())
        return 0;
    auto &own = counted::traces[thread];
    if (to)
        std::copy(own.begin(), own.end(), to);
    return (unsigned)own.size();
}
