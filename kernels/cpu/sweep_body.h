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

/* σ (aᵀv + s·b) of one column with one score a row. */
INLINE double NAME(slope_one)(const quadratic *q, int64_t column)
{
    int64_t first, last;
    const VALUE *values = NAME(values_of)(q, column, &first, &last);
    double sums[4] = {0.0, 0.0, 0.0, 0.0};
    int64_t e = first;
    for (; e + 4 <= last; e += 4)
        for (int a = 0; a < 4; a++)
            sums[a] += (double)values[e + a] * q->v[q->rows ? q->rows[e + a] : e + a];
    double sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    for (; e < last; e++)
        sum += (double)values[e] * q->v[q->rows ? q->rows[e] : e];
    return q->scale * (sum + q->bends[column] * q->shift[0]);
}

INLINE void NAME(move_one)(const quadratic *q, int64_t column, double move)
{
    int64_t first, last;
    const VALUE *values = NAME(values_of)(q, column, &first, &last);
    for (int64_t e = first; e < last; e++) {
        int64_t i = q->rows ? q->rows[e] : e;
        q->v[i] += move * (double)values[e] * q->h[i];
    }
    q->shift[0] -= move * q->means[column];
}

/* The same of class k, where H_i = c_i (diag(p_i) − p_i p_iᵀ). */
INLINE double NAME(slope_class)(const quadratic *q, int64_t column, int64_t k)
{
    int64_t first, last, classes = q->classes;
    const VALUE *values = NAME(values_of)(q, column, &first, &last);
    double sum = 0.0;
    for (int64_t e = first; e < last; e++) {
        int64_t i = q->rows ? q->rows[e] : e, at = i * classes + k;
        sum += (double)values[e] * (q->v[at] + q->h[at] * (q->moves[at] - q->mixed[i]));
    }
    const double *bends = q->bends + (column * classes + k) * classes;
    for (int64_t l = 0; l < classes; l++)
        sum += bends[l] * q->shift[l];
    return q->scale * sum;
}

INLINE void NAME(move_class)(const quadratic *q, int64_t column, int64_t k, double move)
{
    int64_t first, last, classes = q->classes;
    const VALUE *values = NAME(values_of)(q, column, &first, &last);
    for (int64_t e = first; e < last; e++) {
        int64_t i = q->rows ? q->rows[e] : e, at = i * classes + k;
        double change = move * (double)values[e];
        q->moves[at] += change;
        q->mixed[i] += q->shares[at] * change;
    }
    const double *means = q->means + (column * classes + k) * classes;
    for (int64_t l = 0; l < classes; l++)
        q->shift[l] -= move * means[l];
}

static double NAME(sweep)(const quadratic *q, const int64_t *order, int64_t count)
{
    int64_t classes = q->classes;
    double farthest = 0.0;
    for (int64_t t = 0; t < count; t++) {
        int64_t item = order[t], column = item / classes, k = item % classes;
        double slope = classes == 1 ? NAME(slope_one)(q, column)
                                    : NAME(slope_class)(q, column, k);
        double before = q->x[item], end = step(q, item, before, slope);
        if (end == before)
            continue;
        q->x[item] = end;
        double move = end - before, pull = q->scale * q->curvatures[item] + q->l2;
        if (pull * (move < 0.0 ? -move : move) > farthest)
            farthest = pull * (move < 0.0 ? -move : move);
        if (classes == 1)
            NAME(move_one)(q, column, move);
        else
            NAME(move_class)(q, column, k, move);
    }
    return farthest;
}

static void NAME(curvatures)(const quadratic *q, const double *h, int64_t count,
                             double *out)
{
    int64_t first, last, classes = q->classes;
    for (int64_t column = 0; column < count; column++) {
        const VALUE *values = NAME(values_of)(q, column, &first, &last);
        for (int64_t k = 0; k < classes; k++) {
            double sum = 0.0;
            for (int64_t e = first; e < last; e++) {
                int64_t i = q->rows ? q->rows[e] : e;
                sum += (double)values[e] * (double)values[e] * h[i * classes + k];
            }
            out[column * classes + k] = sum;
        }
    }
}
