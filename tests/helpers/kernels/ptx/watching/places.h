/* Where an access is: an array, the shared memory of this block or another, or nowhere. */
#pragma once
#include "findings.h"
#include "../watch.h"

namespace watching {

struct Location {
    Known released, fenced;
};

struct Group {
    std::vector<Thread> threads;
    std::vector<Region> shared;          /* one a block */
    std::vector<Meetings> blocks, warps;
    Meetings cluster;
    std::vector<unsigned> running; /* threads of a block */
    unsigned each = 0, size = 0;
};

inline std::vector<Region> arrays; /* by address */
inline std::map<uintptr_t, Location> locations;
inline Group group;
inline bool stopped;
inline void (*let_others_run)();
inline uint64_t moves, moves_seen, quiet_rounds; /* what happens, but for looks while waiting */
constexpr uint64_t PATIENCE = 3000; /* rounds in which nothing happens */
inline uint64_t watched[4];

inline uint32_t cluster_of(uint32_t block) { return block / std::max(1u, group.size); }

struct Access {
    uintptr_t at;
    unsigned bytes;
    int kind;
    uint32_t where;
    Region *region;
    int space;
};

inline Finding &say(What what, const Access &a, uint32_t other_where = 0)
{
    int name = a.region ? a.region->name : NOWHERE;
    Finding &one = say(what, a.where, other_where, name);
    if (one.times == 1) {
        one.space = a.space, one.kind = a.kind, one.bytes = a.bytes;
        one.offset = a.region ? (int64_t)(a.at - a.region->base) : (int64_t)a.at;
    }
    return one;
}

inline void say_beside(What what, const Access &a, const Event &e, int kind)
{
    Finding &one = say(what, a, e.where);
    if (one.times > 1)
        return;
    one.other_kind = kind, one.other_block = e.block;
    one.other_warp = e.warp, one.other_mask = e.mask;
}

/* Such an access is not made: the launch ends, this thread never goes on. */
[[noreturn]] inline void end_here()
{
    for (stopped = true;;)
        let_others_run();
}

/* The array that an address is nearest to, and how far it is from its beginning. */
inline void say_outside(const Access &a)
{
    Finding &one = say(OUTSIDE, a);
    if (one.times > 1)
        return;
    uint64_t least = 1 << 20;
    for (const Region &r : arrays) {
        uint64_t apart = a.at < r.base ? r.base - a.at : a.at - r.end();
        if (apart < least) {
            least = apart;
            one.region = r.name;
            one.offset = (int64_t)(a.at - r.base);
        }
    }
}

inline Region *array_at(uintptr_t at)
{
    auto is_behind = [](uintptr_t place, const Region &r) { return place < r.base; };
    auto next = std::upper_bound(arrays.begin(), arrays.end(), at, is_behind);
    if (next == arrays.begin() || !(next - 1)->holds(at))
        return nullptr;
    return &*(next - 1);
}

inline Region *shared_at(uintptr_t at, int &space)
{
    unsigned own = current->local / group.each;
    for (unsigned i = 0; i < group.shared.size(); i++) {
        unsigned b = (own + i) % group.shared.size();
        Region &r = group.shared[b];
        /* what lies just behind it belongs to it, too: as an access beyond its end */
        if (at >= r.base && at < r.end() + 128) {
            space = i ? CLUSTER : SHARED;
            return &r;
        }
    }
    return nullptr;
}

/* Finds the place; a launch ends where there is none. */
inline void resolve(Access &a, int space)
{
    a.region = space == GLOBAL ? array_at(a.at) : shared_at(a.at, a.space);
    if (a.region && (space != SHARED || a.space == SHARED) &&
        a.at + a.bytes <= a.region->end())
        return;
    if (a.region && space != GLOBAL)
        say(OUTSIDE, a);
    else
        say_outside(a);
    end_here();
}

} // namespace watching
