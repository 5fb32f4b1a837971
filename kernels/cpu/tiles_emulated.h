/* AMX tiles in plain C, as Intel's manual defines the instructions.

   TDPBF16PS sums the even products of a pair in one chain of fused multiply-adds and the
   odd ones in another, from zero, adds the two, and then adds that to the tile. Rounding
   is to nearest; denormals are zero where they are read and become zero where they are
   written. What a processor would refuse counts in `tile_faults`. */

#include <float.h>
#include <math.h>

static _Thread_local unsigned char tile_bytes[8][TILE_SIZE];
static _Thread_local tile_shapes tile_shape; /* palette 0: not configured */
__attribute__((visibility("default"))) int tile_faults;

static inline int tile_is_ready(int tile)
{
    int ready = tile_shape.palette == 1 && tile >= 0 && tile < 8 &&
                tile_shape.rows[tile] && tile_shape.bytes[tile];
    tile_faults += !ready;
    return ready;
}

static inline void tile_config(const tile_shapes *shapes)
{
    int is_good = shapes->palette == 1;
    for (int tile = 0; tile < 8; tile++)
        is_good &= shapes->rows[tile] <= TILE_ROWS && shapes->bytes[tile] <= TILE_BYTES;
    tile_faults += !is_good;
    tile_shape = *shapes;
    memset(tile_bytes, 0, sizeof tile_bytes);
}

static inline void tile_release(void)
{
    memset(&tile_shape, 0, sizeof tile_shape);
}

static inline void tile_zero(int tile)
{
    if (tile_is_ready(tile))
        memset(tile_bytes[tile], 0, TILE_SIZE);
}

static inline void tile_load(int tile, const void *from, int64_t stride)
{
    if (!tile_is_ready(tile))
        return;
    memset(tile_bytes[tile], 0, TILE_SIZE);
    for (int row = 0; row < tile_shape.rows[tile]; row++)
        memcpy(tile_bytes[tile] + row * TILE_BYTES, (const char *)from + row * stride,
               tile_shape.bytes[tile]);
}

static inline void tile_store(int tile, void *to, int64_t stride)
{
    if (!tile_is_ready(tile))
        return;
    for (int row = 0; row < tile_shape.rows[tile]; row++)
        memcpy((char *)to + row * stride, tile_bytes[tile] + row * TILE_BYTES,
               tile_shape.bytes[tile]);
}

static inline float tile_flushed(float value)
{
    return fabsf(value) < FLT_MIN ? copysignf(0, value) : value;
}

static inline float tile_widened(uint16_t bits)
{
    uint32_t word = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &word, 4);
    return tile_flushed(value);
}

/* a b + c. Whether a result is too small is asked of it rounded to 24 bits, which the
   rounding of a denormal is not: it may fall on FLT_MIN from below. */
static inline float tile_fma(float a, float b, float c)
{
    double almost = (double)a * b + c;
    if (fabs(almost) < FLT_MIN * (1 - 0x1p-25))
        return copysignf(0, (float)almost);
    return tile_flushed(fmaf(a, b, c));
}

static inline float tile_sum(float a, float b)
{
    return tile_flushed(tile_flushed(a) + tile_flushed(b));
}

static inline void tile_dot(int sums, int left, int right)
{
    if (!tile_is_ready(sums) || !tile_is_ready(left) || !tile_is_ready(right))
        return;
    int pairs = tile_shape.bytes[left] / 4, columns = tile_shape.bytes[sums] / 4;
    int is_alike = tile_shape.rows[left] == tile_shape.rows[sums] &&
                   tile_shape.rows[right] == pairs &&
                   tile_shape.bytes[right] == tile_shape.bytes[sums];
    tile_faults += !is_alike || sums == left || sums == right || left == right;
    for (int m = 0; m < tile_shape.rows[sums]; m++)
        for (int n = 0; n < columns; n++) {
            float even = 0, odd = 0, sum;
            for (int k = 0; k < pairs; k++) {
                uint16_t a[2], b[2];
                memcpy(a, tile_bytes[left] + m * TILE_BYTES + 4 * k, 4);
                memcpy(b, tile_bytes[right] + k * TILE_BYTES + 4 * n, 4);
                even = tile_fma(tile_widened(a[0]), tile_widened(b[0]), even);
                odd = tile_fma(tile_widened(a[1]), tile_widened(b[1]), odd);
            }
            unsigned char *to = tile_bytes[sums] + m * TILE_BYTES + 4 * n;
            memcpy(&sum, to, 4);
            sum = tile_sum(sum, tile_sum(even, odd));
            memcpy(to, &sum, 4);
        }
}
