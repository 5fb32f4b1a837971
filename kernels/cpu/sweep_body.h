/* Sweeps over columns of one type of value; included by sweep.c for each of them. */

/* Where the values of a column begin and end; those of a dense one are all its rows. */
INLINE const VALUE *NAME(values_of)(const quadratic *q, int64_t column, int64_t *first,
                                    int64_t *last)
{
    int64_t number = q->columns[column];
    const VALUE *values = (const VALUE *)q->values;
    if (!q->rows) {
        *first = 0;
        *last = q->height;
        return values + number * q->height;
    }
    *first = q->edges[number];
    *last = q->edges[number + 1];
    return values;
}

/* Σ a_i v_i of a dense column. */
INLINE double NAME(dense_product)(const VALUE *restrict a, const double *restrict v,
                                  int64_t count)
{
    eight sums[4] = {{0.0}, {0.0}, {0.0}, {0.0}};
    int64_t i = 0;
    for (; i + 4 * EIGHT <= count; i += 4 * EIGHT)
        for (int k = 0; k < 4; k++)
            sums[k] += NAME(load_eight)(a + i + k * EIGHT) *
                       load_eight_f64(v + i + k * EIGHT);
    double sum = total_of((sums[0] + sums[1]) + (sums[2] + sums[3]));
    for (; i < count; i++)
        sum += (double)a[i] * v[i];
    return sum;
}

/* The same of a sparse one, with four sums. */
INLINE double NAME(sparse_product)(const VALUE *restrict a, const int32_t *restrict rows,
                                   const double *restrict v, int64_t count)
{
    double sums[4] = {0.0, 0.0, 0.0, 0.0};
    int64_t e = 0;
    for (; e + 4 <= count; e += 4)
        for (int k = 0; k < 4; k++)
            sums[k] += (double)a[e + k] * v[rows[e + k]];
    double sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    for (; e < count; e++)
        sum += (double)a[e] * v[rows[e]];
    return sum;
}

/* σ (aᵀv + s·b) of one column with one score a row. */
INLINE double NAME(slope_one)(const quadratic *q, int64_t column)
{
    int64_t first, last;
    const VALUE *values = NAME(values_of)(q, column, &first, &last);
    double sum = q->rows ? NAME(sparse_product)(values + first, q->rows + first, q->v,
                                                last - first)
                         : NAME(dense_product)(values, q->v, last);
    return q->scale * (sum + q->bends[column] * q->shift[0]);
}

/* v += move h a of one column with one score a row. */
INLINE void NAME(add_move)(const quadratic *q, int64_t column, double move)
{
    int64_t first, last;
    const VALUE *restrict values = NAME(values_of)(q, column, &first, &last);
    const int32_t *restrict rows = q->rows;
    const double *restrict h = q->h;
    double *restrict v = q->v;
    if (rows)
        for (int64_t e = first; e < last; e++)
            v[rows[e]] += move * (double)values[e] * h[rows[e]];
    else
        for (int64_t i = 0; i < last; i++)
            v[i] += move * (double)values[i] * h[i];
}

INLINE void NAME(move_one)(const quadratic *q, int64_t column, double move)
{
    NAME(add_move)(q, column, move);
    q->shift[0] -= move * q->means[column];
}

/* v += move h a of a dense column, and Σ b v of another one: one pass over v for both. */
INLINE double NAME(move_and_product)(const quadratic *q, const VALUE *restrict a,
                                     double move, const VALUE *restrict b)
{
    eight sums[4] = {{0.0}, {0.0}, {0.0}, {0.0}};
    const double *restrict h = q->h;
    double *restrict v = q->v, level = move * q->uniform;
    int64_t i = 0, count = q->height;
    if (q->uniform != 0.0)
        for (; i + 4 * EIGHT <= count; i += 4 * EIGHT)
            for (int k = 0; k < 4; k++) {
                double *to = v + i + k * EIGHT;
                eight value = load_eight_f64(to) +
                              level * NAME(load_eight)(a + i + k * EIGHT);
                store_eight(to, value);
                sums[k] += NAME(load_eight)(b + i + k * EIGHT) * value;
            }
    else
        for (; i + 4 * EIGHT <= count; i += 4 * EIGHT)
            for (int k = 0; k < 4; k++) {
                double *to = v + i + k * EIGHT;
                eight value = load_eight_f64(to) +
                              move * NAME(load_eight)(a + i + k * EIGHT) *
                                  load_eight_f64(h + i + k * EIGHT);
                store_eight(to, value);
                sums[k] += NAME(load_eight)(b + i + k * EIGHT) * value;
            }
    double sum = total_of((sums[0] + sums[1]) + (sums[2] + sums[3]));
    for (; i < count; i++) {
        v[i] += move * (double)a[i] * h[i];
        sum += (double)b[i] * v[i];
    }
    return sum;
}

/* The same of class k, where H_i = c_i (diag(p_i) − p_i p_iᵀ). */
INLINE double NAME(slope_class)(const quadratic *q, int64_t column, int64_t k)
{
    int64_t first, last, classes = q->classes;
    const VALUE *restrict values = NAME(values_of)(q, column, &first, &last);
    const int32_t *restrict rows = q->rows;
    const double *restrict v = q->v, *restrict h = q->h;
    const double *restrict moves = q->moves, *restrict mixed = q->mixed;
    double sum = 0.0;
    for (int64_t e = first; e < last; e++) {
        int64_t i = rows ? rows[e] : e, at = i * classes + k;
        sum += (double)values[e] * (v[at] + h[at] * (moves[at] - mixed[i]));
    }
    const double *bends = q->bends + (column * classes + k) * classes;
    for (int64_t l = 0; l < classes; l++)
        sum += bends[l] * q->shift[l];
    return q->scale * sum;
}

INLINE void NAME(move_class)(const quadratic *q, int64_t column, int64_t k, double move)
{
    int64_t first, last, classes = q->classes;
    const VALUE *restrict values = NAME(values_of)(q, column, &first, &last);
    const int32_t *restrict rows = q->rows;
    const double *restrict shares = q->shares;
    double *restrict moves = q->moves, *restrict mixed = q->mixed;
    for (int64_t e = first; e < last; e++) {
        int64_t i = rows ? rows[e] : e, at = i * classes + k;
        double change = move * (double)values[e];
        moves[at] += change;
        mixed[i] += shares[at] * change;
    }
    const double *means = q->means + (column * classes + k) * classes;
    for (int64_t l = 0; l < classes; l++)
        q->shift[l] -= move * means[l];
}

/* What `sweep` does, of dense columns with one score a row. A move changes v together
   with the product of the next column. */
static double NAME(sweep_dense)(const quadratic *q, const int64_t *order, int64_t count)
{
    const VALUE *values = (const VALUE *)q->values, *moved = NULL;
    double farthest = 0.0, move = 0.0;
    int64_t last = 0;
    for (int64_t t = 0; t < count; t++) {
        int64_t item = order[t];
        const VALUE *column = values + q->columns[item] * q->height;
        double sum = moved ? NAME(move_and_product)(q, moved, move, column)
                           : NAME(dense_product)(column, q->v, q->height);
        double slope = q->scale * (sum + q->bends[item] * q->shift[0]);
        double before = q->x[item], end = step(q, item, before, slope);
        moved = NULL;
        if (end == before)
            continue;
        q->x[item] = end;
        move = end - before;
        double away = (q->scale * q->curvatures[item] + q->l2) * magnitude(move);
        if (away > farthest)
            farthest = away;
        q->shift[0] -= move * q->means[item];
        moved = column;
        last = item;
    }
    if (moved)
        NAME(add_move)(q, last, move);
    return farthest;
}

/* One exact minimum over each item of `order`, one after the other. Returns the largest
   move of an item times its curvature: the subgradient that it took away. */
static double NAME(sweep)(const quadratic *q, const int64_t *order, int64_t count)
{
    int64_t classes = q->classes;
    double farthest = 0.0;
    if (classes == 1 && !q->rows)
        return NAME(sweep_dense)(q, order, count);
    for (int64_t t = 0; t < count; t++) {
        int64_t item = order[t], column = item / classes, k = item % classes;
        double slope = classes == 1 ? NAME(slope_one)(q, column)
                                    : NAME(slope_class)(q, column, k);
        double before = q->x[item], end = step(q, item, before, slope);
        if (end == before)
            continue;
        q->x[item] = end;
        double move = end - before, pull = q->scale * q->curvatures[item] + q->l2;
        if (pull * magnitude(move) > farthest)
            farthest = pull * magnitude(move);
        if (classes == 1)
            NAME(move_one)(q, column, move);
        else
            NAME(move_class)(q, column, k, move);
    }
    return farthest;
}

/* Sweeps over the items that are not 0, until they hardly move. */
static void NAME(descend_active)(quadratic *q, int64_t count, int64_t most)
{
    int64_t points = 0;
    while (q->sweeps < most) {
        if (q->kept)
            keep(q, count, points++);
        double moved = NAME(sweep)(q, q->active, count);
        q->sweeps++;
        q->steps += count;
        if (moved <= q->still * q->farthest)
            return;
        if (points == KEPT) {
            extrapolate(q, count);
            points = 0;
        }
    }
}

static void NAME(descend)(quadratic *q, const int64_t *order, int64_t count, int64_t most)
{
    q->sweeps = 0;
    q->steps = 0;
    while (q->sweeps < most) {
        double moved = NAME(sweep)(q, order, count);
        q->sweeps++;
        q->steps += count;
        if (moved > q->farthest)
            q->farthest = moved;
        q->is_still = moved <= q->still * q->farthest;
        if (q->is_still)
            return;
        int64_t active = 0;
        for (int64_t t = 0; t < count; t++)
            if (q->x[order[t]] != 0.0)
                q->active[active++] = order[t];
        if (active)
            NAME(descend_active)(q, active, most);
    }
}

/* v += move a, for a column with one score a row. */
INLINE void NAME(add_one)(const quadratic *q, int64_t column, double move)
{
    int64_t first, last;
    const VALUE *restrict values = NAME(values_of)(q, column, &first, &last);
    const int32_t *restrict rows = q->rows;
    double *restrict v = q->v;
    if (rows)
        for (int64_t e = first; e < last; e++)
            v[rows[e]] += move * (double)values[e];
    else
        for (int64_t i = 0; i < last; i++)
            v[i] += move * (double)values[i];
}

/* The values of up to eight rows in one column, one after the other. */
INLINE void NAME(gather)(const VALUE *restrict from, int64_t stride, int64_t count,
                         VALUE *restrict to)
{
    if (count == EIGHT)
        for (int k = 0; k < EIGHT; k++)
            to[k] = from[k * stride];
    else
        for (int64_t k = 0; k < count; k++)
            to[k] = from[k * stride];
}

/* Σ a h and Σ a² h of one dense column with one score a row. */
INLINE void NAME(dense_moments)(const VALUE *restrict a, const double *restrict h,
                                int64_t count, double *first, double *second)
{
    eight one[2] = {{0.0}, {0.0}}, two[2] = {{0.0}, {0.0}};
    int64_t i = 0;
    for (; i + 2 * EIGHT <= count; i += 2 * EIGHT)
        for (int k = 0; k < 2; k++) {
            eight value = NAME(load_eight)(a + i + k * EIGHT);
            eight product = value * load_eight_f64(h + i + k * EIGHT);
            one[k] += product;
            two[k] += product * value;
        }
    double sum = total_of(one[0] + one[1]), squares = total_of(two[0] + two[1]);
    for (; i < count; i++) {
        sum += (double)a[i] * h[i];
        squares += (double)a[i] * (double)a[i] * h[i];
    }
    *first = sum;
    *second = squares;
}

static void NAME(column_moments)(const quadratic *q, int64_t count, double *first_out,
                                 double *second_out)
{
    int64_t first, last, classes = q->classes;
    const double *h = q->h;
    for (int64_t column = 0; column < count; column++) {
        const VALUE *values = NAME(values_of)(q, column, &first, &last);
        if (!q->rows && classes == 1) {
            NAME(dense_moments)(values, h, last, first_out + column,
                                second_out + column);
            continue;
        }
        for (int64_t k = 0; k < classes; k++) {
            double sum = 0.0, squares = 0.0;
            for (int64_t e = first; e < last; e++) {
                int64_t i = q->rows ? q->rows[e] : e;
                double product = (double)values[e] * h[i * classes + k];
                sum += product;
                squares += product * (double)values[e];
            }
            first_out[column * classes + k] = sum;
            second_out[column * classes + k] = squares;
        }
    }
}
