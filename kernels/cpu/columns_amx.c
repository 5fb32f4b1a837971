/* Products of sampled bf16 rows with many columns of fp32 weights, by AMX tiles.

   A float is the sum of three bf16 numbers, of 8 digits each, so that Y W is the sum of
   three products of bf16: every product of two numbers is exact, and all are summed in
   fp32. What is less than 2^-126 counts as 0. margins: Y W. update: W += Yᵀ R. Sums run
   in a fixed order: the same input gives the same bits. */

#include "lanes.h"

#if defined(__AMX_BF16__) && defined(__AVX512BW__)
#define HAS_TILES 1
#include "tiles.h"
#include "turn.h"
#endif

#define SIDE 16    /* rows of a tile, and rows and columns of a tile of sums */
#define COLUMNS 32 /* bf16 numbers of a row of a tile */
#define TILE (SIDE * SIDE)
#define PARTS 3

static inline int64_t groups_of(int64_t count, int64_t size)
{
    return (count + size - 1) / size;
}

/* Words of 4 bytes of scratch that both kernels take; 0 where there are none. */
EXPORT int64_t hpcsgd_columns_room(int64_t rows, int64_t cols, int64_t wide)
{
    int64_t own = groups_of(cols, COLUMNS), sample = groups_of(rows, COLUMNS);
    int64_t tiles = PARTS * groups_of(wide, SIDE);
    int64_t margins = tiles * own + 2 * own, update = tiles * sample + 2 * sample;
    int64_t words = (margins > update ? margins : update) * TILE + 16;
#if defined(HAS_TILES)
    return words;
#else
    return words * 0;
#endif
}

#if defined(HAS_TILES)

INLINE __mmask16 first_of_16(int64_t left)
{
    return left >= 16 ? (__mmask16)0xffff : (__mmask16)((1u << left) - 1);
}

/* Two rows of at most 16 floats, side by side, as a row of each of three tiles. */
INLINE void split(const float *even, const float *odd, int64_t left, uint32_t *to)
{
    __mmask16 mask = first_of_16(left);
    __m512 a = even ? _mm512_maskz_loadu_ps(mask, even) : _mm512_setzero_ps();
    __m512 b = odd ? _mm512_maskz_loadu_ps(mask, odd) : _mm512_setzero_ps();
    for (int part = 0; part < PARTS; part++) {
        __m512i low = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(a));
        __m512i high = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(b));
        high = _mm512_slli_epi32(high, 16);
        _mm512_store_si512(to + part * TILE, _mm512_or_si512(low, high));
        a = _mm512_sub_ps(a, _mm512_castsi512_ps(_mm512_slli_epi32(low, 16)));
        b = _mm512_sub_ps(b, _mm512_castsi512_ps(high));
    }
}

/* 32 rows of values from `first` on, 16 columns of them: three tiles of pairs of rows. */
INLINE void split_tiles(const float *values, int64_t first, int64_t count, int64_t wide,
                        int64_t column, uint32_t *to)
{
    for (int64_t p = 0; p < SIDE; p++) {
        int64_t k = first + 2 * p;
        const float *row = values + k * wide + column;
        split(k < count ? row : 0, k + 1 < count ? row + wide : 0, wide - column,
              to + p * SIDE);
    }
}

typedef float sums_of_tile[SIDE][SIDE];

INLINE void zero_sums(void)
{
    tile_zero(0);
    tile_zero(1);
    tile_zero(2);
    tile_zero(3);
}

INLINE void store_sums(sums_of_tile sums[2][2])
{
    tile_store(0, sums[0][0], TILE_BYTES);
    tile_store(1, sums[0][1], TILE_BYTES);
    tile_store(2, sums[1][0], TILE_BYTES);
    tile_store(3, sums[1][1], TILE_BYTES);
}

/* 32 rows (`bytes` apart) times two groups of columns, `chunks` of 32 numbers deep. */
INLINE void times_weights(const uint16_t *rows, int64_t bytes, const uint32_t *one,
                          const uint32_t *other, int64_t chunks, sums_of_tile sums[2][2])
{
    const uint16_t *below = rows + SIDE * bytes / 2;
    zero_sums();
    for (int64_t q = 0; q < chunks; q++) {
        tile_load(4, rows + q * COLUMNS, bytes);
        tile_load(5, below + q * COLUMNS, bytes);
        for (int part = 0; part < PARTS; part++) {
            int64_t at = (q * PARTS + part) * TILE;
            tile_load(6, one + at, TILE_BYTES);
            tile_dot(0, 4, 6);
            tile_dot(2, 5, 6);
            tile_load(7, other + at, TILE_BYTES);
            tile_dot(1, 4, 7);
            tile_dot(3, 5, 7);
        }
    }
    store_sums(sums);
}

/* out (m × K) ← Y W for weights d × K; `room` holds hpcsgd_columns_room words. */
EXPORT void hpcsgd_margins_tiles(const uint16_t *matrix, int64_t stride,
                                 const int64_t *rows, int64_t count, int64_t cols,
                                 int64_t wide, const float *weights, float *out,
                                 uint32_t *room)
{
    int64_t chunks = groups_of(cols, COLUMNS), groups = groups_of(wide, SIDE);
    uint32_t *packed = (uint32_t *)(((uintptr_t)room + 63) / 64 * 64);
    uint16_t *plain = (uint16_t *)(packed + groups * chunks * PARTS * TILE);
    int64_t each = chunks * COLUMNS;
    _Alignas(64) sums_of_tile sums[2][2];
    for (int64_t g = 0; g < groups; g++)
        for (int64_t q = 0; q < chunks; q++)
            split_tiles(weights, q * COLUMNS, cols, wide, g * SIDE,
                        packed + (g * chunks + q) * PARTS * TILE);
    tile_begin();
    for (int64_t i = 0; i < count; i += 2 * SIDE) {
        int64_t here = count - i < 2 * SIDE ? count - i : 2 * SIDE;
        for (int64_t r = 0; r < 2 * SIDE; r++)
            for (int64_t k = 0; k < each; k += COLUMNS)
                _mm512_store_si512(
                    plain + r * each + k,
                    r < here ? numbers_of(matrix + rows[i + r] * stride + k, cols - k)
                             : _mm512_setzero_si512());
        for (int64_t g = 0; g < groups; g += 2) {
            const uint32_t *one = packed + g * chunks * PARTS * TILE;
            int64_t both = g + 1 < groups;
            times_weights(plain, 2 * each, one, one + both * chunks * PARTS * TILE,
                          chunks, sums);
            for (int64_t r = 0; r < here; r++)
                for (int64_t f = 0; f <= both; f++) {
                    int64_t c = (g + f) * SIDE;
                    _mm512_mask_storeu_ps(out + (i + r) * wide + c,
                                          first_of_16(wide - c),
                                          _mm512_load_ps(sums[r / SIDE][f][r % SIDE]));
                }
        }
    }
    tile_release();
}

/* Two groups of columns of R times 32 columns of Y, `chunks` of 32 rows deep. */
INLINE void times_rows(const uint32_t *one, const uint32_t *other, const uint32_t *pairs,
                       int64_t chunks, sums_of_tile sums[2][2])
{
    zero_sums();
    for (int64_t q = 0; q < chunks; q++) {
        tile_load(6, pairs + 2 * q * TILE, TILE_BYTES);
        tile_load(7, pairs + (2 * q + 1) * TILE, TILE_BYTES);
        for (int part = 0; part < PARTS; part++) {
            int64_t at = (q * PARTS + part) * TILE;
            tile_load(4, one + at, TILE_BYTES);
            tile_dot(0, 4, 6);
            tile_dot(1, 4, 7);
            tile_load(5, other + at, TILE_BYTES);
            tile_dot(2, 5, 6);
            tile_dot(3, 5, 7);
        }
    }
    store_sums(sums);
}

INLINE void turn_tile(uint32_t *tile)
{
    __m512i r[SIDE];
    for (int i = 0; i < SIDE; i++)
        r[i] = _mm512_load_si512(tile + i * SIDE);
    turn(r);
    for (int i = 0; i < SIDE; i++)
        _mm512_store_si512(tile + i * SIDE, r[i]);
}

/* Sampled rows as pairs of rows: 16 columns from `first` on, of rows from `i` on. */
INLINE void pair_rows(const uint16_t *matrix, int64_t stride, const int64_t *rows,
                      int64_t i, int64_t count, int64_t first, int64_t cols,
                      uint32_t *tile)
{
    __mmask16 mask = first >= cols ? 0 : first_of_16(cols - first);
    for (int64_t p = 0; p < SIDE; p++, i += 2) {
        __m256i low = _mm256_setzero_si256(), high = low;
        if (i < count)
            low = _mm256_maskz_loadu_epi16(mask, matrix + rows[i] * stride + first);
        if (i + 1 < count)
            high = _mm256_maskz_loadu_epi16(mask, matrix + rows[i + 1] * stride + first);
        __m512i above = _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16);
        above = _mm512_or_si512(above, _mm512_cvtepu16_epi32(low));
        _mm512_store_si512(tile + p * SIDE, above);
    }
}

/* Sums, columns of R by columns of Y, turned and added to weights from `to` on. */
INLINE void add_sums(uint32_t *sums, float *to, int64_t wide, int64_t count,
                     __mmask16 mask)
{
    turn_tile(sums);
    for (int64_t k = 0; k < SIDE && k < count; k++) {
        __m512 w = _mm512_maskz_loadu_ps(mask, to + k * wide);
        w = _mm512_add_ps(w, _mm512_load_ps((const float *)sums + k * SIDE));
        _mm512_mask_storeu_ps(to + k * wide, mask, w);
    }
}

/* weights (d × K) += Yᵀ R for residuals m × K; `room` as above. */
EXPORT void hpcsgd_update_tiles(const uint16_t *matrix, int64_t stride,
                                const int64_t *rows, int64_t count, int64_t cols,
                                int64_t wide, const float *residuals, float *weights,
                                uint32_t *room)
{
    int64_t chunks = groups_of(count, COLUMNS), groups = groups_of(wide, SIDE);
    uint32_t *packed = (uint32_t *)(((uintptr_t)room + 63) / 64 * 64);
    uint32_t *pairs = packed + groups * chunks * PARTS * TILE;
    _Alignas(64) sums_of_tile sums[2][2];
    for (int64_t g = 0; g < groups; g++)
        for (int64_t q = 0; q < chunks; q++) {
            uint32_t *to = packed + (g * chunks + q) * PARTS * TILE;
            split_tiles(residuals, q * COLUMNS, count, wide, g * SIDE, to);
            for (int part = 0; part < PARTS; part++)
                turn_tile(to + part * TILE);
        }
    tile_begin();
    for (int64_t k = 0; k < cols; k += 2 * SIDE) {
        for (int64_t q = 0; q < chunks; q++)
            for (int64_t half = 0; half < 2; half++)
                pair_rows(matrix, stride, rows, q * COLUMNS, count, k + half * SIDE,
                          cols, pairs + (2 * q + half) * TILE);
        for (int64_t g = 0; g < groups; g += 2) {
            const uint32_t *one = packed + g * chunks * PARTS * TILE;
            int64_t both = g + 1 < groups;
            times_rows(one, one + both * chunks * PARTS * TILE, pairs, chunks, sums);
            for (int64_t f = 0; f <= both; f++)
                for (int64_t half = 0; half < 2; half++) {
                    int64_t c = (g + f) * SIDE, first = k + half * SIDE;
                    add_sums((uint32_t *)sums[f][half], weights + first * wide + c,
                             wide, cols - first, first_of_16(wide - c));
                }
        }
    }
    tile_release();
}

#endif
