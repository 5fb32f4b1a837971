/* What an access does to those before it, and what goes along with it. */
#pragma once
#include "places.h"

namespace watching {

inline void look_at_reads(const Access &a, Cell &cell, bool strong)
{
    for (const Event &e : cell.reads)
        if (!(strong && e.strong) && !is_before(e, *current, cluster_of(e.block)))
            say_beside(RACE, a, e, READ);
}

inline void look_at_write(const Access &a, Cell &cell, bool strong)
{
    if (cell.has_writer && !(strong && cell.write.strong) &&
        !is_before(cell.write, *current, cluster_of(cell.write.block)))
        say_beside(RACE, a, cell.write, WRITE);
}

inline void write_cell(const Access &a, Cell &cell, const Event &e)
{
    look_at_write(a, cell, e.strong);
    look_at_reads(a, cell, e.strong);
    cell.write = e;
    cell.has_writer = cell.is_written = true;
    cell.reads.clear();
}

inline void read_cell(const Access &a, Cell &cell, const Event &e)
{
    if (!cell.is_written)
        say(UNWRITTEN, a);
    look_at_write(a, cell, e.strong);
    cell.note_read(e);
}

inline bool is_flying(const Access &a, Cell &cell)
{
    if (!cell.flying)
        return false;
    const Thread &t = group.threads[cell.flying - 1];
    say_beside(FLYING, a, event_of(t, cell.flying_where, false), WRITE);
    return true;
}

inline void touch(const Access &a)
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
inline void pass_on(const Access &a)
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

inline void look_at_other_block(const Access &a)
{
    unsigned other = (unsigned)(a.region - group.shared.data());
    if (!current->carried.waits)
        say(NOT_RUNNING, a);
    if (group.running[other] < group.each)
        say(ENDED, a);
}

inline void access(int space, int kind, const void *at, unsigned bytes, uint32_t where,
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

} // namespace watching
