/* The work of gram_wgmma.cu as a line: the stages of the first tile, of the second,
   and so on. A tile with an even J and its right neighbour are a pair, made at once:
   a stage of it is two of the line. A block takes `each` tile-stages (2 or more, so
   that no part between others is empty), wherever tiles begin. */
#ifndef HPCSGD_GRAM_LINE_CUH
#define HPCSGD_GRAM_LINE_CUH

#include "device.cuh"

/* What a worker does of one tile, or of a pair. */
struct Part {
    int number, I, J, sides; /* of the first tile; 2 of a pair */
    int first, last;         /* stages */
    int place, of;           /* of how many parts it is which */
    s64 next;                /* tile-stage, where the next tile begins */
};

/* How many stages of a pair (or tile) that begins at `begin` lie before `at`. */
INLINE int stages_before(s64 at, s64 begin, int sides, int stages)
{
    s64 before = (at - begin + sides - 1) / sides;
    return (int)min(max(before, (s64)0), (s64)stages);
}

INLINE Part part_at(s64 at, s64 end, const u32 *tiles, int ntiles, int stages, int each)
{
    Part part;
    int number = (int)(at / stages);
    number -= (int)(tiles[number] & 1u); /* the second of a pair */
    u32 tile = tiles[number];
    bool pair = number + 1 < ntiles && tiles[number + 1] == (tile | 1u);
    s64 begin = (s64)number * stages;
    part.number = number;
    part.I = (int)(tile >> 16);
    part.J = (int)(tile & 0xffffu);
    part.sides = pair ? 2 : 1;
    part.next = begin + part.sides * stages;
    part.first = stages_before(at, begin, part.sides, stages);
    part.last = stages_before(end, begin, part.sides, stages);
    part.place = (int)(at / each - begin / each);
    part.of = (int)((begin + part.sides * (stages - 1)) / each - begin / each) + 1;
    return part;
}

#endif
