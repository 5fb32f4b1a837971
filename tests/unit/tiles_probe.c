/* The AMX kernels on emulated tiles, and one instruction by itself. */

#include "gram_amx.c"
#include "threads.c"

/* sums += left × right, whole tiles of the given shape; other rows and bytes stay 0. */
EXPORT void probe_dot(const tile_shapes *shapes, const void *left, const void *right,
                      void *sums)
{
    tile_config(shapes);
    tile_load(0, sums, TILE_BYTES);
    tile_load(1, left, TILE_BYTES);
    tile_load(2, right, TILE_BYTES);
    tile_dot(0, 1, 2);
    tile_store(0, sums, TILE_BYTES);
    tile_release();
}

/* True while tiles are configured. */
EXPORT int probe_is_open(void) { return tile_shape.palette != 0; }
