/* Which of two accesses comes first on every machine, whatever order this one took.

   As PTX's memory model has it: program order, barriers of warp, block and cluster, and
   fences beside strong accesses. What a thread knows to be over is counted by what it
   stands behind: barriers of its block, its warp, its cluster; and `known`, the same
   counts of others, which came by memory. */
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace watching {

enum Counted : uint64_t { BLOCK, WARP, CLUSTER_OF, THREAD };
typedef std::vector<std::pair<uint64_t, uint32_t>> Counts; /* ascending */
typedef std::shared_ptr<const Counts> Known;

inline uint64_t key_of(Counted what, uint64_t number) { return what << 60 | number; }

inline uint32_t count_in(const Known &known, uint64_t key)
{
    auto at = std::lower_bound(known->begin(), known->end(), std::make_pair(key, 0u));
    return at != known->end() && at->first == key ? at->second : 0;
}

/* into = all that either knows. */
inline void join(Known &into, const Known &more)
{
    if (!more || into == more)
        return;
    if (!into) {
        into = more;
        return;
    }
    auto both = std::make_shared<Counts>();
    auto a = into->begin(), b = more->begin();
    while (a != into->end() || b != more->end()) {
        bool left = b == more->end() || (a != into->end() && a->first <= b->first);
        bool right = a == into->end() || (b != more->end() && b->first <= a->first);
        both->push_back(left ? *a : *b);
        if (left && right)
            both->back().second = std::max(a->second, b->second);
        a += left;
        b += right;
    }
    if (*both == *into)
        return;
    into = *both == *more ? more : both;
}

/* What goes along with an order: `known` is over; `fenced` was known at a fence, and may
   go on by a strong write behind it; `pending` was read, and is known from a fence on. */
struct Carried {
    Known known, fenced, pending;
    uint32_t waits = 0; /* barriers of the cluster that are over */

    void join_with(const Carried &other)
    {
        join(known, other.known);
        join(fenced, other.fenced);
        join(pending, other.pending);
        waits = std::max(waits, other.waits);
    }
};

/* One barrier, as those see it that come to it. */
struct Meeting {
    uint32_t number = 0, where = 0, came = 0;
    bool looked = false, said = false;
    int kind = 0;
    Carried carried;
};

/* Barriers of one kind of one group: nobody is two ahead of anybody. */
struct Meetings {
    Meeting of[2];
    uint32_t members = 0;

    Meeting &at(uint32_t number)
    {
        Meeting &found = of[number & 1];
        if (found.number != number + 1) {
            found = Meeting();
            found.number = number + 1;
        }
        return found;
    }
};

struct Thread {
    uint32_t block = 0, index = 0, warp = 0, lane = 0, cluster = 0, local = 0;
    uint32_t blocks_done = 0, warps_done = 0, arrived = 0, waited = 0, lanes_done = 0;
    uint32_t epoch = 0; /* fences */
    bool ended = false;
    Carried carried;
    Known released; /* what was known at the last fence of its own */

    uint64_t number() const { return (uint64_t)warp * 32 + lane; }
};

/* An access, or the same one by several lanes of a warp. */
struct Event {
    uint32_t block = 0, warp = 0, mask = 0, where = 0;
    uint32_t blocks_done = 0, warps_done = 0, arrived = 0, epoch = 0;
    bool strong = false;

    bool is_like(const Event &o) const
    {
        return warp == o.warp && blocks_done == o.blocks_done && epoch == o.epoch &&
               warps_done == o.warps_done && arrived == o.arrived && strong == o.strong;
    }
};

inline Event event_of(const Thread &t, uint32_t where, bool strong)
{
    Event e;
    e.block = t.block, e.warp = t.warp, e.mask = 1u << t.lane, e.where = where;
    e.blocks_done = t.blocks_done, e.warps_done = t.warps_done;
    e.arrived = t.arrived, e.epoch = t.epoch, e.strong = strong;
    return e;
}

inline bool is_known(const Event &e, const Thread &t, uint32_t others)
{
    const Known &known = t.carried.known;
    if (!known)
        return false;
    if (count_in(known, key_of(BLOCK, e.block)) > e.blocks_done ||
        count_in(known, key_of(WARP, e.warp)) > e.warps_done ||
        count_in(known, key_of(CLUSTER_OF, t.cluster)) > e.arrived)
        return true;
    for (uint32_t lane = 0; lane < 32; lane++)
        if (others >> lane & 1 &&
            count_in(known, key_of(THREAD, (uint64_t)e.warp * 32 + lane)) <= e.epoch)
            return false;
    return true;
}

/* Whether an access is over before whatever `t` does next. `cluster`: e's. */
inline bool is_before(const Event &e, const Thread &t, uint32_t cluster)
{
    uint32_t others = e.mask & ~(e.warp == t.warp ? 1u << t.lane : 0u);
    if (!others)
        return true;
    if (e.block == t.block && e.blocks_done < t.blocks_done)
        return true;
    if (e.warp == t.warp && e.warps_done < t.warps_done)
        return true;
    if (cluster == t.cluster && e.arrived < t.carried.waits)
        return true;
    return is_known(e, t, others);
}

/* fence.sc (membar.gl): what was read counts from here on, what is known may go on. */
inline void fence(Thread &t)
{
    join(t.carried.known, t.carried.pending);
    t.carried.pending = nullptr;
    auto own = std::make_shared<Counts>();
    own->push_back({key_of(BLOCK, t.block), t.blocks_done});
    own->push_back({key_of(WARP, t.warp), t.warps_done});
    if (t.carried.waits)
        own->push_back({key_of(CLUSTER_OF, t.cluster), t.carried.waits});
    own->push_back({key_of(THREAD, t.number()), t.epoch + 1});
    t.released = own;
    join(t.released, t.carried.known);
    join(t.carried.fenced, t.released);
    t.epoch++;
}

} // namespace watching
