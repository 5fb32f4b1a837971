/* The Hessian of sparse rows: what is added is as little as the values of a row, squared.

   Each row adds h a a' to a square that the caller keeps, in float64: a row of 14 values
   makes 105 products, and not half the square of all columns. */

#include "lanes.h"

#define OUTER(NAME, INDEX)                                                             \
    EXPORT void NAME(const int64_t *indptr, const INDEX *indices, const double *data,  \
                     int64_t count, const double *bends, int64_t width, double *out)   \
    {                                                                                  \
        for (int64_t i = 0; i < count; i++)                                            \
            for (int64_t k = indptr[i]; k < indptr[i + 1]; k++) {                      \
                double value = bends[i] * data[k], *row = out + indices[k] * width;    \
                for (int64_t l = indptr[i]; l <= k; l++)                               \
                    row[indices[l]] += value * data[l];                                \
            }                                                                          \
    }

/* out += sum over `count` CSR rows of bends_i a_i a_i', the lower triangle of a square
   with rows of `width` numbers; the columns of a row ascend. */
OUTER(hpcsgd_csr_outer_i32, int32_t)
OUTER(hpcsgd_csr_outer_i64, int64_t)

/* The Hessian of dense rows with one score each: Σ_i s_i s_i' of scaled rows

       s_i = √h_i ((a_i − m) / √D, e),

   where m are the centers of the columns, 1/√D their scales and e the entry of the
   intercept. A group of rows at a time is scaled into a room that stays in the cache, and
   multiplied there by tiles of the square that stay in registers. The sum of a group is
   added to the square in one: beside a row that is much longer than the others, less of
   these is lost to rounding. Tiles do not change the order of the sums. */

#define EIGHT 8   /* the square has whole eights of rows and columns */
#define GROUP 16  /* rows that are scaled and multiplied at a time */
#define ROOM 8192 /* numbers of these rows: 512 columns, or fewer rows of more */

/* A tile has TALL rows of BROAD registers, as many as there are, less those of a row. */
#if defined(__AVX512F__)
#define WORDS 8
#define TALL 8
#define BROAD 3
#elif defined(__AVX2__)
#define WORDS 4
#define TALL 4
#define BROAD 2
#else
#define WORDS 2
#define TALL 4
#define BROAD 2
#endif

typedef double vector __attribute__((vector_size(8 * WORDS)));

/* Add the products of `count` scaled rows to the tile at (first, left) of the square,
   which has `broad` registers a row. */
INLINE void add_tile(const double *rows, int64_t count, int64_t width, int64_t first,
                     int64_t left, double *square, const int broad)
{
    vector sums[TALL][BROAD];
    double *corner = square + first * width + left;
    for (int a = 0; a < TALL; a++)
        for (int b = 0; b < broad; b++)
            sums[a][b] = (vector){0};
    for (int64_t i = 0; i < count; i++) {
        const double *row = rows + i * width;
        vector side[BROAD];
        for (int b = 0; b < broad; b++)
            memcpy(&side[b], row + left + b * WORDS, sizeof(vector));
        for (int a = 0; a < TALL; a++)
            for (int b = 0; b < broad; b++)
                sums[a][b] += side[b] * row[first + a];
    }
    for (int a = 0; a < TALL; a++)
        for (int b = 0; b < broad; b++) {
            double *to = corner + a * width + b * WORDS;
            vector before;
            memcpy(&before, to, sizeof before);
            before += sums[a][b];
            memcpy(to, &before, sizeof before);
        }
}

/* Add the products of `count` scaled rows to the lower triangle of the square. */
static void add_square(const double *rows, int64_t count, int64_t width, double *square)
{
    for (int64_t first = 0; first < width; first += TALL) {
        int64_t end = (first + TALL + EIGHT - 1) / EIGHT * EIGHT, left = 0;
        for (; left + BROAD * WORDS <= end; left += BROAD * WORDS)
            add_tile(rows, count, width, first, left, square, BROAD);
#if BROAD == 3
        if (left + 2 * WORDS <= end) {
            add_tile(rows, count, width, first, left, square, 2);
            left += 2 * WORDS;
        }
        if (left < end)
            add_tile(rows, count, width, first, left, square, 1);
#endif
    }
}

/* out += Σ_i s_i s_i' of `count` rows, a square of `variables` = cols, or cols + 1 with
   an intercept of entry `last`. `square` is a room of whole eights, width × width. */
#define SQUARES(KIND, VALUE)                                                           \
    EXPORT void hpcsgd_row_squares_##KIND(                                             \
        const VALUE *matrix, int64_t stride, int64_t count, int64_t cols,              \
        const double *roots, const double *centers, const double *scales,              \
        const double *last, int64_t variables, double *square, double *out)            \
    {                                                                                  \
        double rows[ROOM];                                                             \
        int64_t width = (variables + EIGHT - 1) / EIGHT * EIGHT, each = ROOM / width;  \
        each = each < GROUP ? each : GROUP;                                            \
        memset(square, 0, sizeof(double) * width * width);                             \
        for (int64_t begin = 0; begin < count; begin += each) {                        \
            int64_t some = count - begin < each ? count - begin : each;                \
            for (int64_t i = 0; i < some; i++) {                                       \
                const VALUE *from = matrix + (begin + i) * stride;                     \
                double root = roots[begin + i], *to = rows + i * width;                \
                for (int64_t k = 0; k < cols; k++)                                     \
                    to[k] = ((double)from[k] - centers[k]) * scales[k] * root;         \
                for (int64_t k = cols; k < width; k++)                                 \
                    to[k] = k < variables ? *last * root : 0.0;                        \
            }                                                                          \
            add_square(rows, some, width, square);                                     \
        }                                                                              \
        for (int64_t i = 0; i < variables; i++)                                        \
            for (int64_t k = 0; k <= i; k++) {                                         \
                double sum = square[i * width + k];                                    \
                out[i * variables + k] += sum;                                         \
                if (k < i)                                                             \
                    out[k * variables + i] += sum;                                     \
            }                                                                          \
    }

SQUARES(f32, float)
SQUARES(f64, double)
