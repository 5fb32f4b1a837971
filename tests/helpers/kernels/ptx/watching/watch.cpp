/* Whoever watches: bounds, races, what was never written, barriers that some miss. */
#include <cstring>

#include "races.h"

using namespace watching;

uint32_t watch_issued;

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

void watch_unit(const void *at, unsigned bytes)
{
    if (current)
        access(SHARED, READ, at, bytes, watch_issued);
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
