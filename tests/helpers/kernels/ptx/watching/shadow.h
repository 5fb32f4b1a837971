/* What is remembered of each place in memory: who wrote it last, who has read it since. */
#pragma once
#include "clocks.h"

namespace watching {

struct Cell {
    Event write;
    bool is_written = false; /* by the launch, or before it */
    bool has_writer = false;
    uint32_t flying = 0; /* 1 + the thread whose copy is under way here, in its cluster */
    uint32_t flying_where = 0;
    std::vector<Event> reads;

    void note_read(const Event &e)
    {
        for (Event &other : reads)
            if (other.is_like(e)) {
                other.mask |= e.mask;
                return;
            }
        reads.push_back(e);
    }
};

/* An array, or the shared memory of a block: exact bounds. A cell is `grain` bytes: the
   smallest access that there was. */
struct Region {
    uintptr_t base = 0;
    size_t bytes = 0;
    unsigned grain = 4;
    bool constant = false; /* an input: no cells, nobody writes there */
    int name = -1;
    std::vector<Cell> cells;

    uintptr_t end() const { return base + bytes; }
    bool holds(uintptr_t at) const { return at >= base && at < end(); }

    void refine(unsigned to)
    {
        std::vector<Cell> finer(cells.empty() ? 0 : (bytes + to - 1) / to);
        for (size_t i = 0; i < finer.size(); i++)
            finer[i] = cells[i * to / grain];
        cells.swap(finer);
        grain = to;
    }

    /* Calls `each` with the cells of an access that lies inside. */
    template <class F> void visit(uintptr_t at, size_t size, F each)
    {
        while (((at - base) | size) % grain && grain > 1)
            refine(grain / 2);
        size_t first = (at - base) / grain;
        for (size_t i = 0; i < size / grain; i++)
            if (!each(cells[first + i], at + i * grain))
                return;
    }
};

} // namespace watching
