/* The losses of many rows in float64, with residuals and curvatures, in one pass.

   A library takes an exponential for each of the three, one number at a time; here all
   three come of one, eight rows at once. Eight sums, each of at most CHUNK rows, are
   added to a total with what rounding loses of it, so that a mean of any number of rows
   has its last digits. The order is fixed. */

#include "lanes.h"

#define EIGHT 8
#define CHUNK 512      /* rows of a plain sum */
#define MOST_CLASSES 64 /* scores of a row */

typedef double eight __attribute__((vector_size(8 * EIGHT)));
typedef int64_t bits __attribute__((vector_size(8 * EIGHT)));

/* Elementary functions. */

INLINE eight every(double value)
{
    return (eight){value, value, value, value, value, value, value, value};
}

/* a where it is so, b elsewhere. */
INLINE eight either(bits so, eight a, eight b)
{
    return (eight)((so & (bits)a) | (~so & (bits)b));
}

INLINE eight power_of_two(bits k)
{
    return (eight)((k + 1023) << 52);
}

/* e^x, off by about one unit in the last place: x = k log 2 + r with |r| <= log(2) / 2,
   and e^r by its series to r^13. What is no number stays so. */
INLINE eight exp_of(eight x)
{
    const double nearest = 6755399441055744.0; /* 1.5 * 2^52: no digits behind the point */
    x = either(every(709.9) < x, every(709.9), x);   /* infinite from there on */
    x = either(x < every(-746.0), every(-746.0), x); /* and 0 */
    eight shifted = x * 1.4426950408889634 + nearest;
    eight k = shifted - nearest;
    eight r = x - k * 6.93147180369123816490e-01;
    r = r - k * 1.90821492927058770002e-10;
    eight sum = r * 1.6059043836821613e-10 + 2.0876756987868100e-09;
    sum = sum * r + 2.5052108385441720e-08;
    sum = sum * r + 2.7557319223985893e-07;
    sum = sum * r + 2.7557319223985888e-06;
    sum = sum * r + 2.4801587301587302e-05;
    sum = sum * r + 1.9841269841269841e-04;
    sum = sum * r + 1.3888888888888889e-03;
    sum = sum * r + 8.3333333333333333e-03;
    sum = sum * r + 4.1666666666666664e-02;
    sum = sum * r + 1.6666666666666666e-01;
    sum = sum * r + 0.5;
    sum = sum * (r * r) + r + 1.0;
    bits power = (bits)shifted - 0x4338000000000000; /* the bits of `nearest` */
    bits part = power >> 1;
    return sum * power_of_two(part) * power_of_two(power - part);
}

/* log x of normal numbers from 1 on: x = 2^k m with m between sqrt(1/2) and sqrt(2), and
   log m = 2 artanh((m - 1) / (m + 1)) by its series. */
INLINE eight log_of(eight x)
{
    bits word = (bits)x;
    bits k = (word >> 52) - 1023;
    eight m = (eight)((word & 0x000fffffffffffff) | 0x3ff0000000000000);
    bits is_large = m > every(1.4142135623730951);
    m = either(is_large, m * 0.5, m);
    eight power = __builtin_convertvector(k - is_large, eight); /* true is -1 */
    eight f = m - 1.0;
    eight z = f / (f + 2.0);
    eight y = z * z;
    eight sum = y * (1.0 / 23) + 1.0 / 21;
    sum = sum * y + 1.0 / 19;
    sum = sum * y + 1.0 / 17;
    sum = sum * y + 1.0 / 15;
    sum = sum * y + 1.0 / 13;
    sum = sum * y + 1.0 / 11;
    sum = sum * y + 1.0 / 9;
    sum = sum * y + 1.0 / 7;
    sum = sum * y + 1.0 / 5;
    sum = sum * y + 1.0 / 3;
    eight log_m = 2.0 * z + 2.0 * z * (sum * y);
    return power * 6.93147180369123816490e-01 +
           (log_m + power * 1.90821492927058770002e-10);
}

/* log(1 + u) for u from 0 to 1, exact to the last place where u is small, too. */
INLINE eight log_one_plus(eight u)
{
    eight one = u + 1.0;
    return log_of(one) + (u - (one - 1.0)) / one;
}

/* Sums over all rows. */

typedef struct {
    eight loss, slope, size;
} sums;

/* total += part; rest += what rounding loses of it. */
INLINE void add_exactly(eight *total, eight *rest, eight part)
{
    eight sum = *total + part;
    eight back = sum - *total;
    *rest += (*total - (sum - back)) + (part - back);
    *total = sum;
}

INLINE double folded(eight total, eight rest)
{
    double sum = 0.0, left = 0.0;
    for (int a = 0; a < EIGHT; a++) {
        double next = sum + total[a], back = next - sum;
        left += (sum - (next - back)) + (total[a] - back) + rest[a];
        sum = next;
    }
    return sum + left;
}

typedef struct {
    sums total, rest, chunk;
} account;

INLINE void close_chunk(account *all)
{
    add_exactly(&all->total.loss, &all->rest.loss, all->chunk.loss);
    add_exactly(&all->total.slope, &all->rest.slope, all->chunk.slope);
    add_exactly(&all->total.size, &all->rest.size, all->chunk.size);
    all->chunk = (sums){{0}, {0}, {0}};
}

INLINE void write_sums(const account *all, double *out)
{
    out[0] = folded(all->total.loss, all->rest.loss);
    out[1] = folded(all->total.slope, all->rest.slope);
    out[2] = folded(all->total.size, all->rest.size);
}

INLINE eight load(const double *from, int64_t count)
{
    eight v = {0};
    if (count == EIGHT)
        memcpy(&v, from, sizeof v);
    else
        for (int64_t a = 0; a < count; a++)
            v[a] = from[a];
    return v;
}

INLINE void store(double *to, eight v, int64_t count)
{
    if (count == EIGHT)
        memcpy(to, &v, sizeof v);
    else
        for (int64_t a = 0; a < count; a++)
            to[a] = v[a];
}

/* Families of one score a row: loss, residual and curvature at the scores t. */

enum { GAUSSIAN, LOGISTIC, POISSON, GAMMA };

INLINE void row_terms(int kind, eight t, eight y, double bound, eight *loss, eight *r,
                      eight *h)
{
    if (kind == GAUSSIAN) {
        *r = t - y;
        *loss = 0.5 * *r * *r;
        *h = every(1.0);
    } else if (kind == LOGISTIC) {
        bits is_positive = t > every(0.0);
        eight small = exp_of(either(is_positive, -t, t));
        eight share = 1.0 / (1.0 + small);
        eight other = small * share;
        *loss = either(is_positive, t, every(0.0)) + log_one_plus(small) - y * t;
        *r = either(is_positive, share, other) - y;
        *h = share * other;
    } else if (kind == POISSON) {
        eight mean = exp_of(either(t > every(bound), every(bound), t));
        *loss = mean - y * t;
        *r = mean - y;
        *h = mean;
    } else {
        eight ratio = y * exp_of(either(t < every(-bound), every(bound), -t));
        *loss = ratio + t;
        *r = 1.0 - ratio;
        *h = ratio;
    }
}

INLINE void do_rows(int kind, int64_t count, const double *scores, const double *targets,
                    const double *shares, const double *along, double bound, double *r,
                    double *h, double *out)
{
    account all = {0};
    for (int64_t i = 0; i < count; i += EIGHT) {
        int64_t own = count - i < EIGHT ? count - i : EIGHT;
        eight share = load(shares + i, own), loss, residual, bend;
        row_terms(kind, load(scores + i, own), load(targets + i, own), bound, &loss,
                  &residual, &bend);
        store(r + i, residual, own);
        store(h + i, bend, own);
        if (own < EIGHT) { /* the rows behind the last one count nothing */
            loss = load((double *)&loss, own);
            residual = load((double *)&residual, own);
        }
        eight cost = share * loss;
        all.chunk.loss += cost;
        all.chunk.size += either(cost < every(0.0), -cost, cost);
        all.chunk.slope += share * residual * load(along + i, own);
        if ((i + EIGHT) % CHUNK == 0)
            close_chunk(&all);
    }
    close_chunk(&all);
    write_sums(&all, out);
}

/* out <- (sum c l, sum c r q, sum c |l|), r <- dl/dt and h <- d2l/dt2 of `count` rows with
   scores t, targets y, weights c and q = `along`; exponents end at `bound`. */
EXPORT void hpcsgd_loss_terms(int64_t kind, int64_t count, const double *scores,
                              const double *targets, const double *shares,
                              const double *along, const double *bound, double *r,
                              double *h, double *out)
{
    switch (kind) { /* one loop for each family, without a question inside */
    case GAUSSIAN:
        do_rows(GAUSSIAN, count, scores, targets, shares, along, *bound, r, h, out);
        break;
    case LOGISTIC:
        do_rows(LOGISTIC, count, scores, targets, shares, along, *bound, r, h, out);
        break;
    case POISSON:
        do_rows(POISSON, count, scores, targets, shares, along, *bound, r, h, out);
        break;
    default:
        do_rows(GAMMA, count, scores, targets, shares, along, *bound, r, h, out);
    }
}

/* Column k of `count` rows of `classes` numbers, one row a lane. */
INLINE eight load_column(const double *from, int64_t classes, int64_t count)
{
    eight v = {0};
    if (count == EIGHT)
        for (int a = 0; a < EIGHT; a++)
            v[a] = from[a * classes];
    else
        for (int64_t a = 0; a < count; a++)
            v[a] = from[a * classes];
    return v;
}

INLINE void store_column(double *to, eight v, int64_t classes, int64_t count)
{
    if (count == EIGHT)
        for (int a = 0; a < EIGHT; a++)
            to[a * classes] = v[a];
    else
        for (int64_t a = 0; a < count; a++)
            to[a * classes] = v[a];
}

/* The same of softmax: K <= MOST_CLASSES scores a row, labels as targets; no h. */
EXPORT void hpcsgd_loss_terms_softmax(int64_t count, int64_t classes,
                                      const double *scores, const double *labels,
                                      const double *shares, const double *along,
                                      double *r, double *out)
{
    account all = {0};
    eight e[MOST_CLASSES];
    for (int64_t i = 0; i < count; i += EIGHT) {
        int64_t own = count - i < EIGHT ? count - i : EIGHT, first = i * classes;
        eight share = load(shares + i, own), label = load(labels + i, own);
        eight top = load_column(scores + first, classes, own);
        e[0] = top;
        for (int64_t k = 1; k < classes; k++) {
            e[k] = load_column(scores + first + k, classes, own);
            top = either(e[k] > top, e[k], top);
        }
        eight sum = {0}, chosen = {0}, slope = {0};
        for (int64_t k = 0; k < classes; k++) {
            chosen = either(label == every((double)k), e[k], chosen);
            e[k] = exp_of(e[k] - top); /* no number stays so, in all of its row */
            sum += e[k];
        }
        eight scale = 1.0 / sum;
        for (int64_t k = 0; k < classes; k++) {
            eight hit = either(label == every((double)k), every(1.0), every(0.0));
            eight residual = e[k] * scale - hit;
            slope += residual * load_column(along + first + k, classes, own);
            store_column(r + first + k, residual, classes, own);
        }
        eight cost = share * (log_of(sum) + (top - chosen));
        all.chunk.loss += cost;
        all.chunk.size += either(cost < every(0.0), -cost, cost);
        all.chunk.slope += share * slope;
        if ((i + EIGHT) % CHUNK == 0)
            close_chunk(&all);
    }
    close_chunk(&all);
    write_sums(&all, out);
}
