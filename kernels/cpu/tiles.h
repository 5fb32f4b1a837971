/* The tile registers of AMX: five operations on 16 rows of 64 bytes.

   With HPCSGD_TILES_EMULATED they are plain C that does what Intel's manual says, so that
   the kernels above them run, and are tested, on every processor. */

#ifndef HPCSGD_TILES_H
#define HPCSGD_TILES_H

#include <stdint.h>
#include <string.h>

#define TILE_ROWS 16
#define TILE_BYTES 64
#define TILE_SIZE (TILE_ROWS * TILE_BYTES)

/* What ldtilecfg reads; all eight tiles are whole ones here. */
typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} tile_shapes;

#if defined(HPCSGD_TILES_EMULATED)
#include "tiles_emulated.h"
#else
#include <immintrin.h>

/* The intrinsics of some compilers do not say that they read memory: what was stored
   before has to be there. */
#define STORED __asm__ volatile("" ::: "memory")
#define tile_config(shapes)                                                            \
    do {                                                                               \
        STORED;                                                                        \
        _tile_loadconfig(shapes);                                                      \
    } while (0)
#define tile_load(tile, from, stride)                                                  \
    do {                                                                               \
        STORED;                                                                        \
        _tile_loadd(tile, from, stride);                                               \
    } while (0)
#define tile_store(tile, to, stride)                                                   \
    do {                                                                               \
        _tile_stored(tile, to, stride);                                                \
        STORED;                                                                        \
    } while (0)
#define tile_zero(tile) _tile_zero(tile)
#define tile_dot(sums, left, right) _tile_dpbf16ps(sums, left, right)
#define tile_release() _tile_release()
#endif

/* Every kernel begins with this and ends with tile_release, so that a switch of
   processes in between two of them keeps no tiles. */
static inline void tile_begin(void)
{
    tile_shapes shapes;
    memset(&shapes, 0, sizeof shapes);
    shapes.palette = 1;
    for (int tile = 0; tile < 8; tile++) {
        shapes.bytes[tile] = TILE_BYTES;
        shapes.rows[tile] = TILE_ROWS;
    }
    tile_config(&shapes);
}

#endif
