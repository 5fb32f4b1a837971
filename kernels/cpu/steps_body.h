/* The recurrence of s steps in one call, for REAL = float and for double.

   t_j = Σ_k lead_jk z_k + Σ_{i<j} couple_ji G_ji r_i + β + offset, then r_j = ∂ℓ/∂t.
   Included twice by steps.c. */

/* Coefficients of an exchange: prepared once, used for as many as are alike. */
typedef struct {
    int64_t batches, states, family;
    double setting;        /* the family's parameter: δ of huber, the power of tweedie,
                              the dispersion; the bound of exponents of the others */
    const int64_t *starts; /* batches + 1 */
    const double *lead;    /* batches × states */
    const double *couple;  /* entry j (j − 1) / 2 + i */
    const double *free;    /* batches × states × states, of the intercept */
    const double *push;    /* batches × states */
    const double *probe;   /* states */
} NAMED(plan);

INLINE REAL NAMED(residual)(int64_t family, REAL t, REAL y, REAL setting)
{
    REAL e, bound = NAMED(EXP_BOUND);
    switch (family) {
    case LOGISTIC: /* the exponential of what is never positive */
        e = EXP(t < 0 ? t : -t);
        return (t < 0 ? e : (REAL)1) / ((REAL)1 + e) - y;
    case GAUSSIAN:
        return t - y;
    case POISSON:
        return EXP(t < setting ? t : setting) - y;
    case GAMMA:
        return (REAL)1 - EXP(-(t > -setting ? t : -setting)) * y;
    case SQUARED_HINGE:
        e = t * y - (REAL)1;
        return (e < 0 ? e : (REAL)0) * y;
    case TWEEDIE: /* a score that is no number stays one */
        e = ((REAL)1 - setting) * t;
        e = EXP(bound < e ? bound : e) * y;
        t *= (REAL)2 - setting;
        return EXP(bound < t ? bound : t) - e;
    case NEGATIVE_BINOMIAL:
        e = EXP(bound < t ? bound : t);
        return (e - y) / ((REAL)1 + setting * e);
    default: /* HUBER */
        e = t - y;
        e = e < setting ? e : setting;
        return e > -setting ? e : -setting;
    }
}

/* Scores become residuals in their place. */
INLINE void NAMED(residuals)(int64_t family, const REAL *targets, REAL setting,
                             int64_t count, REAL *scores)
{
    int64_t i = NAMED(residual_lanes)(family, targets, setting, count, scores);
    for (; i < count; i++)
        scores[i] = NAMED(residual)(family, scores[i], targets[i], setting);
}

/* Lanes of REAL: the dot products of four rows of the Gram with what is behind. */
INLINE void NAMED(dots)(const REAL *panel, int64_t width, const REAL *scaled,
                        const int count, REAL *sums)
{
    NAMED(vector) total[4];
    for (int i = 0; i < count; i++)
        total[i] = (NAMED(vector)){0};
    int64_t k = 0;
    for (; k + NAMED(WIDTH) <= width; k += NAMED(WIDTH)) {
        NAMED(vector) r;
        memcpy(&r, scaled + k, sizeof r);
        if (k % (int64_t)(64 / sizeof(REAL)) == 0) /* a kept Gram comes from memory */
            for (int i = 0; i < count; i++)
                __builtin_prefetch(panel + (count + i) * width + k, 0, 2);
        for (int i = 0; i < count; i++) {
            NAMED(vector) g;
            memcpy(&g, panel + i * width + k, sizeof g);
            total[i] += g * r;
        }
    }
    for (int i = 0; i < count; i++) {
        REAL part[NAMED(WIDTH)];
        memcpy(part, &total[i], sizeof part);
        for (int size = NAMED(WIDTH) / 2; size; size /= 2)
            for (int l = 0; l < size; l++)
                part[l] += part[l + size];
        REAL sum = part[0];
        for (int64_t rest = k; rest < width; rest++)
            sum += panel[i * width + rest] * scaled[rest];
        sums[i] += sum;
    }
}

/* β ← M β + u Σ r, in double as the states of an intercept are. */
INLINE void NAMED(advance)(const NAMED(plan) *plan, int64_t j, const REAL *residuals,
                           double *intercept)
{
    int64_t states = plan->states;
    double total = 0, next[8];
    for (int64_t i = plan->starts[j]; i < plan->starts[j + 1]; i++)
        total += residuals[i];
    for (int64_t a = 0; a < states; a++) {
        next[a] = plan->push[j * states + a] * total;
        for (int64_t b = 0; b < states; b++)
            next[a] += plan->free[(j * states + a) * states + b] * intercept[b];
    }
    memcpy(intercept, next, (size_t)states * sizeof *next);
}

/* Scores of batch j by what is known before it: its margins, offsets, the intercept. */
INLINE void NAMED(begin)(const NAMED(plan) *plan, int64_t j, const REAL *margins,
                         const REAL *offsets, const double *intercept, REAL *scores)
{
    int64_t states = plan->states;
    double start = 0;
    if (intercept)
        for (int64_t a = 0; a < states; a++)
            start += plan->probe[a] * intercept[a];
    for (int64_t i = plan->starts[j]; i < plan->starts[j + 1]; i++) {
        REAL sum = 0;
        for (int64_t a = 0; a < states; a++)
            sum += (REAL)plan->lead[j * states + a] * margins[i * states + a];
        scores[i] = sum + (REAL)start + (offsets ? offsets[i] : (REAL)0);
    }
}

/* `residuals` (m) of all steps; `scratch` holds m REALs; weights, offsets and intercept
   may be NULL. Targets, weights and offsets are those of the sampled rows. */
EXPORT void NAMED(hpcsgd_recur)(const NAMED(plan) *plan, const REAL *margins,
                                const REAL *packed, const REAL *targets,
                                const REAL *weights, const REAL *offsets,
                                double *intercept, REAL *residuals, REAL *scratch)
{
    REAL setting = (REAL)plan->setting;
    for (int64_t j = 0; j < plan->batches; j++) {
        int64_t first = plan->starts[j], last = plan->starts[j + 1];
        NAMED(begin)(plan, j, margins, offsets, intercept, residuals);
        for (int64_t i = 0; i < j; i++) {
            REAL couple = (REAL)plan->couple[j * (j - 1) / 2 + i];
            for (int64_t k = plan->starts[i]; k < plan->starts[i + 1]; k++)
                scratch[k] = couple * residuals[k];
        }
        int64_t i = first;
        for (; first && i + 4 <= last; i += 4)
            NAMED(dots)(packed + (i - first) * first, first, scratch, 4, residuals + i);
        for (; first && i < last; i++)
            NAMED(dots)(packed + (i - first) * first, first, scratch, 1, residuals + i);
        packed += (last - first) * first;
        NAMED(residuals)(plan->family, targets + first, setting, last - first,
                         residuals + first);
        for (i = first; weights && i < last; i++)
            residuals[i] *= weights[i];
        if (intercept)
            NAMED(advance)(plan, j, residuals, intercept);
    }
}
