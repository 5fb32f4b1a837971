/* Whoever watches: bounds, races, what was never written, barriers that some miss. */
#include "watch.h"

#include <cstring>
#include <map>
#include <tuple>

#include "shadow.h"

using namespace watching;

enum What {
    OUTSIDE, MISALIGNED, INTO_INPUT, RACE, FLYING, NOT_RUNNING, ENDED, UNWRITTEN,
    ELSEWHERE, MISSING, NOT_ARRIVED
};
constexpr int NOWHERE = -3, OWN_SHARED = -1, OTHER_SHARED = -2;

extern "C" {
/* As tests/kernels/ptx/watched.py reads it. */
struct Finding {
    int32_t what, space, kind, other_kind, region;
    uint32_t where, block, thread, bytes, other_where, other_block, other_warp, other_mask;
    uint32_t came, members, times;
    int64_t offset;
};
uint32_t watch_issued;
}

namespace {

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

std::vector<Region> arrays; /* by address */
std::vector<Finding> found;
std::map<std::tuple<int, uint32_t, uint32_t, int>, size_t> met;
std::map<uintptr_t, Location> locations;
Group group;
Thread *current;
bool stopped;
void (*let_others_run)();
uint64_t moves, moves_seen, quiet_rounds; /* what happens, but for looks while waiting */
constexpr uint64_t PATIENCE = 3000; /* rounds in which nothing happens */
uint64_t watched[4];

Finding &say(What what, uint32_t where, uint32_t other_where, int region)
{
    auto key = std::make_tuple((int)what, where, other_where, region);
    auto at = met.find(key);
    if (at == met.end()) {
        at = met.emplace(key, found.size()).first;
        Finding one = {};
        one.what = what, one.where = where, one.other_where = other_where;
        one.region = region;
        if (current)
            one.block = current->block, one.thread = current->index;
        found.push_back(one);
    }
    found[at->second].times++;
    return found[at->second];
}

uint32_t cluster_of(uint32_t block) { return block / std::max(1u, group.size); }

struct Access {
    uintptr_t at;
    unsigned bytes;
    int kind;
    uint32_t where;
    Region *region;
    int space;
};

Finding &say(What what, const Access &a, uint32_t other_where = 0)
{
    int name = a.region ? a.region->name : NOWHERE;
    Finding &one = say(what, a.where, other_where, name);
    if (one.times == 1) {
        one.space = a.space, one.kind = a.kind, one.bytes = a.bytes;
        one.offset = a.region ? (int64_t)(a.at - a.region->base) : (int64_t)a.at;
    }
    return one;
}

void say_beside(What what, const Access &a, const Event &e, int kind)
{
    Finding &one = say(what, a, e.where);
    if (one.times > 1)
        return;
    one.other_kind = kind, one.other_block = e.block;
    one.other_warp = e.warp, one.other_mask = e.mask;
}

/* Such an access is not made: the launch ends, this thread never goes on. */
[[noreturn]] void end_here()
{
    for (stopped = true;;)
        let_others_run();
}

/* The array that an address is nearest to, and how far it is from its beginning. */
void say_outside(const Access &a)
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

Region *array_at(uintptr_t at)
{
    auto is_behind = [](uintptr_t place, const Region &r) { return place < r.base; };
    auto next = std::upper_bound(arrays.begin(), arrays.end(), at, is_behind);
    if (next == arrays.begin() || !(next - 1)->holds(at))
        return nullptr;
    return &*(next - 1);
}

Region *shared_at(uintptr_t at, int &space)
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

void look_at_reads(const Access &a, Cell &cell, bool strong)
{
    for (const Event &e : cell.reads)
        if (!(strong && e.strong) && !is_before(e, *current, cluster_of(e.block)))
            say_beside(RACE, a, e, READ);
}

void look_at_write(const Access &a, Cell &cell, bool strong)
{
    if (cell.has_writer && !(strong && cell.write.strong) &&
        !is_before(cell.write, *current, cluster_of(cell.write.block)))
        say_beside(RACE, a, cell.write, WRITE);
}

void write_cell(const Access &a, Cell &cell, const Event &e)
{
    look_at_write(a, cell, e.strong);
    look_at_reads(a, cell, e.strong);
    cell.write = e;
    cell.has_writer = cell.is_written = true;
    cell.reads.clear();
}

void read_cell(const Access &a, Cell &cell, const Event &e)
{
    if (!cell.is_written)
        say(UNWRITTEN, a);
    look_at_write(a, cell, e.strong);
    cell.note_read(e);
}

bool is_flying(const Access &a, Cell &cell)
{
    if (!cell.flying)
        return false;
    const Thread &t = group.threads[cell.flying - 1];
    say_beside(FLYING, a, event_of(t, cell.flying_where, false), WRITE);
    return true;
}

void touch(const Access &a)
{
    if (a.region->constant && (a.kind == WRITE || a.kind == ATOMIC)) {
        say(INTO_INPUT, a);
        return;
    }
    if (a.region->cells.empty())
        return;
    bool strong = a.kind == ATOMIC || a.kind == ACQUIRE;
    Event e = event_of(*current, a.where, strong);
    a.region->visit(a.at, a.bytes, [&](Cell &cell, uintptr_t) {
        if (is_flying(a, cell))
            return true;
        if (a.kind == READ || a.kind == ACQUIRE) {
            read_cell(a, cell, e);
        } else {
            if (a.kind == ATOMIC && !cell.is_written)
                say(UNWRITTEN, a);
            write_cell(a, cell, e);
        }
        return true;
    });
}

/* What goes along with a strong access. */
void pass_on(const Access &a)
{
    Location &at = locations[a.at];
    join(current->carried.pending, at.fenced);
    if (a.kind == ACQUIRE) {
        join(current->carried.known, at.released);
        return;
    }
    join(at.released, current->released);
    join(at.fenced, current->carried.fenced);
}

void look_at_other_block(const Access &a)
{
    unsigned other = (unsigned)(a.region - group.shared.data());
    if (!current->carried.waits)
        say(NOT_RUNNING, a);
    if (group.running[other] < group.each)
        say(ENDED, a);
}

/* Finds the place; a launch ends where there is none. */
void resolve(Access &a, int space)
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

void access(int space, int kind, const void *at, unsigned bytes, uint32_t where,
            bool aligned = true)
{
    Access a = {(uintptr_t)at, bytes, kind, where, nullptr, space};
    resolve(a, space);
    watched[a.space]++;
    moves += kind != ACQUIRE;
    if (aligned && a.at % bytes)
        say(MISALIGNED, a);
    if (a.space == CLUSTER)
        look_at_other_block(a);
    touch(a);
    if (kind == ATOMIC || kind == ACQUIRE)
        pass_on(a);
}

} // namespace

extern "C" {

void watch_access(int space, int kind, const void *at, unsigned bytes, uint32_t where)
{
    if (current)
        access(space, kind, at, bytes, where);
}

/* In flight from here on: nobody may touch where it goes before whoever asked for it
   has waited. It is a write of this moment, too: it may land at once. */
void watch_copy(const void *to, const void *from, int bytes, int whole, uint32_t where)
{
    Access source = {(uintptr_t)from, 16, READ, where, nullptr, GLOBAL};
    if (source.at % 16)
        say(MISALIGNED, source);
    if (bytes > 0)
        access(GLOBAL, READ, from, (unsigned)bytes, where, false);
    Access a = {(uintptr_t)to, (unsigned)whole, WRITE, where, nullptr, SHARED};
    resolve(a, SHARED);
    watched[SHARED]++;
    if (a.at % (unsigned)whole)
        say(MISALIGNED, a);
    touch(a);
    a.region->visit(a.at, a.bytes, [&](Cell &cell, uintptr_t) {
        cell.flying = current->local + 1;
        cell.flying_where = where;
        return true;
    });
}

void watch_land(const void *to, const void *, int, int whole)
{
    Access a = {(uintptr_t)to, (unsigned)whole, WRITE, 0, nullptr, SHARED};
    a.region = current ? shared_at(a.at, a.space) : nullptr;
    if (!a.region || a.at + a.bytes > a.region->end())
        return;
    a.region->visit(a.at, a.bytes, [&](Cell &cell, uintptr_t) {
        if (cell.flying == current->local + 1) {
            cell.flying = 0;
            cell.write = event_of(*current, cell.flying_where, false);
        }
        return true;
    });
}

void watch_fence(void)
{
    if (current)
        fence(*current);
}

static Meetings &meetings_of(const Thread &t, int meet)
{
    if (meet == OF_CLUSTER)
        return group.cluster;
    unsigned block = t.local / group.each, warp = t.index / 32;
    unsigned warps = (group.each + 31) / 32;
    return meet == OF_BLOCK ? group.blocks[block] : group.warps[block * warps + warp];
}

/* Everyone at the same instruction; `number` of this barrier for the thread. */
void watch_arrive(int meet)
{
    if (!current)
        return;
    Thread &t = *current;
    uint32_t number = meet == OF_BLOCK     ? t.blocks_done
                      : meet == OF_CLUSTER ? t.arrived
                                           : t.lanes_done;
    if (meet == OF_CLUSTER && t.arrived != t.waited)
        say(NOT_ARRIVED, watch_issued, 0, NOWHERE);
    Meeting &m = meetings_of(t, meet).at(number);
    if (!m.came)
        m.where = watch_issued, m.kind = meet;
    else if (m.where != watch_issued || m.kind != meet)
        say(ELSEWHERE, watch_issued, m.where, NOWHERE).kind = meet;
    m.came++;
    moves++;
    if (meet != OF_LANES)
        m.carried.join_with(t.carried);
    if (meet == OF_CLUSTER)
        t.arrived++;
}

void watch_pass(int meet)
{
    if (!current)
        return;
    Thread &t = *current;
    uint32_t &number = meet == OF_BLOCK     ? t.blocks_done
                       : meet == OF_CLUSTER ? t.waited
                                            : t.lanes_done;
    if (meet == OF_CLUSTER && t.waited == t.arrived) {
        say(NOT_ARRIVED, watch_issued, 0, NOWHERE);
        return;
    }
    Meetings &all = meetings_of(t, meet);
    Meeting &m = all.at(number);
    if (m.came < all.members && !m.said) {
        m.said = true;
        Finding &one = say(MISSING, m.where, 0, NOWHERE);
        one.kind = meet, one.came = m.came, one.members = all.members;
    }
    if (meet != OF_LANES)
        t.carried.join_with(m.carried);
    number++;
    if (meet == OF_WARP)
        t.warps_done++;
    if (meet == OF_CLUSTER)
        t.carried.waits = std::max(t.carried.waits, t.waited);
}

/* Whatever others have put into its memory has to be there before a block ends. */
static void look_at_what_came(Thread &t, Region &shared)
{
    for (size_t i = 0; i < shared.cells.size(); i++) {
        Cell &cell = shared.cells[i];
        if (!cell.has_writer || cell.write.block == t.block ||
            is_before(cell.write, t, cluster_of(cell.write.block)))
            continue;
        Access a = {shared.base + i * shared.grain, shared.grain, READ, 0, &shared, SHARED};
        say_beside(ENDED, a, cell.write, WRITE);
    }
}

void watch_exit(void)
{
    if (!current)
        return;
    current->ended = true;
    moves++;
    unsigned block = current->local / group.each;
    if (group.shared.size() > 1 && current->index == 0)
        look_at_what_came(*current, group.shared[block]);
    group.running[block]--;
}

static void say_missing(Meetings &all)
{
    for (Meeting &m : all.of)
        if (m.came && m.came < all.members && !m.said) {
            m.said = true;
            Finding &one = say(MISSING, m.where, 0, NOWHERE);
            one.kind = m.kind, one.came = m.came, one.members = all.members;
        }
}

int watch_stopped(void)
{
    quiet_rounds = moves == moves_seen ? quiet_rounds + 1 : 0;
    moves_seen = moves;
    if (quiet_rounds < PATIENCE)
        return stopped;
    say_missing(group.cluster);
    for (Meetings &all : group.blocks)
        say_missing(all);
    for (Meetings &all : group.warps)
        say_missing(all);
    if (found.empty()) /* they wait for a barrier that they have not come to */
        say(NOT_ARRIVED, 0, 0, NOWHERE).kind = OF_CLUSTER;
    return 1;
}

static void begin_group(unsigned cluster, unsigned threads)
{
    unsigned warps = (threads + 31) / 32;
    group = Group();
    group.each = threads, group.size = cluster;
    group.threads.resize(cluster * threads);
    group.shared.resize(cluster);
    group.blocks.resize(cluster);
    group.warps.resize(cluster * warps);
    group.running.assign(cluster, threads);
    group.cluster.members = cluster * threads;
}

void watch_block(unsigned number, unsigned rank, unsigned cluster, unsigned threads,
                 const void *shared, size_t bytes)
{
    unsigned warps = (threads + 31) / 32;
    if (rank == 0)
        begin_group(cluster, threads);
    group.blocks[rank].members = threads;
    Region &room = group.shared[rank];
    room.base = (uintptr_t)shared, room.bytes = bytes, room.name = OWN_SHARED;
    room.cells.resize((bytes + room.grain - 1) / room.grain);
    for (unsigned i = 0; i < threads; i++) {
        Thread &t = group.threads[rank * threads + i];
        t.block = number, t.index = i, t.local = rank * threads + i, t.lane = i % 32;
        t.warp = number * warps + i / 32;
        t.cluster = number / cluster;
        group.warps[rank * warps + i / 32].members++;
    }
}

void watch_run(unsigned index) { current = &group.threads[index]; }

void watch_idle(void) { current = nullptr; }

void watch_launch(void (*yield)()) { let_others_run = yield; }

/* ---- for Python ----------------------------------------------------------------------- */

void watch_begin(void)
{
    arrays.clear(), found.clear(), met.clear(), locations.clear();
    memset(watched, 0, sizeof watched);
    stopped = false;
    quiet_rounds = 0;
    current = nullptr;
    watch_issued = 0;
}

/* `blank`: the word of four bytes that says that nothing was written there. */
void watch_array(const void *at, size_t bytes, unsigned grain, int constant, int name,
                 uint32_t blank)
{
    Region r;
    r.base = (uintptr_t)at, r.bytes = bytes, r.constant = constant, r.name = name;
    r.grain = std::min(grain, 4u);
    const char *from = (const char *)at;
    std::vector<bool> is_blank(bytes / 4 + 1);
    for (size_t i = 0; i + 4 <= bytes; i += 4)
        is_blank[i / 4] = memcmp(from + i, &blank, 4) == 0;
    if (!constant)
        r.cells.resize((bytes + r.grain - 1) / r.grain);
    for (size_t i = 0; i < r.cells.size(); i++)
        r.cells[i].is_written = !is_blank[i * r.grain / 4];
    auto is_behind = [](const Region &one, const Region &two) { return one.base < two.base; };
    arrays.insert(std::upper_bound(arrays.begin(), arrays.end(), r, is_behind), r);
}

size_t watch_findings(Finding *to, size_t most)
{
    for (size_t i = 0; i < std::min(most, found.size()); i++)
        to[i] = found[i];
    return found.size();
}

void watch_counts(uint64_t *to) { memcpy(to, watched, sizeof watched); }
}
