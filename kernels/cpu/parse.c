/* Text to numbers: LIBSVM pairs and delimited columns, into the caller's arrays.

   Decimal numbers become the nearest double, the one that strtod and Python's float()
   give, whatever the locale: exactly (Clinger) where the digits fit 53 bits and the
   power of ten 10^22, by one 128-bit product (Eisel and Lemire) nearly always else,
   and by strtod in the C locale for the few that stay undecided.

   Every text ends with a newline: loops stop there and need no other bound. What is
   refused is named by its kind and the position of its first byte; the kinds are those
   of hpcsgd/data/convert/text.py; hpcsgd/data/convert/parsers.py is the fallback. */

#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* strtod_l */
#endif
#include <float.h>
#include <locale.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__APPLE__)
#include <xlocale.h>
#endif

#define EXPORT __attribute__((visibility("default")))

enum {
    NUMBER = 1, NONFINITE, LABEL, PAIR, INDEX, LARGE, BELOW, DUPLICATE, UNSORTED, QID,
    RAGGED, MISSING, ROOM, UNENDED, MIXED
};

/* ---- decimal numbers ------------------------------------------------------------ */

static const double TENS[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                              1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                              1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
#define LOWEST_POWER (-342)
#define HIGHEST_POWER 308
#define FAR_EXPONENT 100000000000000000 /* beyond any count of digits in a text */

static inline int is_digit(char c) { return (unsigned char)(c - '0') < 10; }

static inline uint64_t eight_bytes(const char *p)
{
    uint64_t word;
    memcpy(&word, p, 8);
    return word;
}

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define EIGHT_AT_ONCE 1
static inline int eight_digits(uint64_t w)
{
    return !(((w + 0x4646464646464646u) | (w - 0x3030303030303030u)) &
             0x8080808080808080u);
}

static inline uint64_t eight_digit_value(uint64_t w)
{
    w -= 0x3030303030303030u;
    w = w * 10 + (w >> 8);
    return (((w & 0x000000FF000000FFu) * 0x000F424000000064u) +
            (((w >> 16) & 0x000000FF000000FFu) * 0x0000271000000001u)) >> 32;
}
#else
#define EIGHT_AT_ONCE 0
static inline int eight_digits(uint64_t w) { return w != w; }
static inline uint64_t eight_digit_value(uint64_t w) { return w; }
#endif

static inline void multiply(uint64_t a, uint64_t b, uint64_t *high, uint64_t *low)
{
#if defined(__SIZEOF_INT128__)
    unsigned __int128 product = (unsigned __int128)a * b;
    *high = (uint64_t)(product >> 64);
    *low = (uint64_t)product;
#else
    uint64_t a0 = (uint32_t)a, a1 = a >> 32, b0 = (uint32_t)b, b1 = b >> 32;
    uint64_t middle = a1 * b0 + ((a0 * b0) >> 32);
    uint64_t other = a0 * b1 + (uint32_t)middle;
    *high = a1 * b1 + (middle >> 32) + (other >> 32);
    *low = a * b;
#endif
}

/* w · 10^q rounded to nearest; 0 where this cannot decide. `powers` holds the upper 128
   bits of 5^q as (high, low) pairs from LOWEST_POWER on. */
static int nearest(uint64_t w, int64_t q, const uint64_t *powers, uint64_t *bits)
{
    uint64_t high, low, more, rest, mantissa;
    int shift, upper;
    int64_t exponent;
    if (w == 0 || q < LOWEST_POWER) {
        *bits = 0;
        return 1;
    }
    if (q > HIGHEST_POWER) {
        *bits = (uint64_t)0x7FF << 52;
        return 1;
    }
    shift = __builtin_clzll(w);
    w <<= shift;
    powers += 2 * (q - LOWEST_POWER);
    multiply(w, powers[0], &high, &low);
    if ((high & 0x1FF) == 0x1FF) {
        multiply(w, powers[1], &more, &rest);
        low += more;
        high += low < more;
    }
    if (low == UINT64_MAX && (q < -27 || q > 55))
        return 0;
    upper = (int)(high >> 63);
    mantissa = high >> (upper + 9);
    exponent = (((152170 + 65536) * q) >> 16) + 63 + upper - shift + 1023;
    if (exponent <= 0)
        return 0; /* subnormal: rare, left to strtod */
    if (low <= 1 && q >= -4 && q <= 23 && (mantissa & 3) == 1 &&
        mantissa << (upper + 9) == high)
        mantissa &= ~(uint64_t)1; /* exactly half way: to even */
    mantissa = (mantissa + (mantissa & 1)) >> 1;
    if (mantissa >= (uint64_t)1 << 53) {
        mantissa = (uint64_t)1 << 52;
        exponent++;
    }
    if (exponent >= 0x7FF) {
        *bits = (uint64_t)0x7FF << 52;
        return 1;
    }
    *bits = (mantissa & ~((uint64_t)1 << 52)) | (uint64_t)exponent << 52;
    return 1;
}

static double by_strtod(const char *p)
{
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    double value;
    if (!plain)
        return strtod(p, NULL);
    value = strtod_l(p, NULL, plain);
    freelocale(plain);
    return value;
}

/* The first nineteen significant digits of p..stop, and how many digits of the whole
   part and of the fraction they leave out or take in, as a power of ten. */
static uint64_t leading(const char *p, const char *stop, int64_t *power, int *cut)
{
    uint64_t w = 0;
    int taken = 0, fraction = 0;
    *power = 0;
    *cut = 0;
    for (; p < stop; p++) {
        if (*p == '.') {
            fraction = 1;
        } else if (taken < 19) {
            w = w * 10 + (uint64_t)(*p - '0');
            taken += w != 0;
            *power -= fraction;
        } else {
            *cut = 1;
            *power += !fraction;
        }
    }
    return w;
}

/* The number at p: 0 and its end, or NUMBER or NONFINITE. `end` is behind the newline
   of the text. */
static inline int number(const char *p, const char *end, const uint64_t *powers,
                         double *value, const char **stop)
{
    const char *start = p, *digits, *fraction, *last;
    uint64_t w = 0, bits, other;
    int64_t q = 0, count;
    int negative = *p == '-', decided;
    if (negative || *p == '+')
        p++;
    digits = p;
    while (is_digit(*p))
        w = w * 10 + (uint64_t)(*p++ - '0');
    count = p - digits;
    if (*p == '.') {
        fraction = ++p;
        while (EIGHT_AT_ONCE && end - p >= 8 && eight_digits(eight_bytes(p))) {
            w = w * 100000000 + eight_digit_value(eight_bytes(p));
            p += 8;
        }
        while (is_digit(*p))
            w = w * 10 + (uint64_t)(*p++ - '0');
        q = fraction - p;
        count -= q;
    }
    if (count == 0)
        return NUMBER;
    last = p;
    if (*p == 'e' || *p == 'E') {
        int64_t e = 0;
        int down = p[1] == '-';
        p += 1 + (down || p[1] == '+');
        if (!is_digit(*p))
            return NUMBER;
        while (is_digit(*p)) {
            e = e < FAR_EXPONENT ? e * 10 + (*p - '0') : e;
            p++;
        }
        q += down ? -e : e;
    }
    *stop = p;
    if (count > 19) {
        int cut;
        int64_t power, whole = q;
        for (const char *c = digits; c < last; c++)
            if (*c == '.')
                whole = q + (last - c - 1); /* the written exponent alone */
        w = leading(digits, last, &power, &cut);
        q = whole + power;
        if (cut) {
            decided = nearest(w, q, powers, &bits) &&
                      nearest(w + 1, q, powers, &other) && bits == other;
            goto undecided;
        }
    }
    if (FLT_EVAL_METHOD == 0 && w <= (uint64_t)1 << 53 && q >= -22 && q <= 22) {
        double exact = (double)w;
        exact = q < 0 ? exact / TENS[-q] : exact * TENS[q];
        *value = negative ? -exact : exact;
        return 0;
    }
    decided = nearest(w, q, powers, &bits);
undecided:
    if (decided) {
        bits |= (uint64_t)negative << 63;
        memcpy(value, &bits, 8);
    } else {
        *value = by_strtod(start);
    }
    return isfinite(*value) ? 0 : NONFINITE;
}

/* ---- tokens --------------------------------------------------------------------- */

static inline int is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f';
}

static inline int ends_token(char c) { return is_blank(c) || c == '\n' || c == '#'; }

static inline const char *skip_blanks(const char *p)
{
    while (is_blank(*p))
        p++;
    return p;
}

/* Whether p..stop is `word`, capitals or not; `word` in small letters. */
static int same_word(const char *p, const char *stop, const char *word)
{
    for (; p < stop && *word; p++, word++) {
        char c = *p >= 'A' && *p <= 'Z' ? (char)(*p + 32) : *p;
        if (c != *word)
            return 0;
    }
    return p == stop && !*word;
}

/* Why p..stop is no number: inf and nan by name are another matter. */
static int unlike_number(const char *p, const char *stop)
{
    if (p < stop && (*p == '-' || *p == '+'))
        p++;
    if (same_word(p, stop, "inf") || same_word(p, stop, "infinity") ||
        same_word(p, stop, "nan"))
        return NONFINITE;
    return NUMBER;
}

/* The number that is all of the token p..stop. */
static int whole_number(const char *p, const char *stop, const char *end,
                        const uint64_t *powers, double *value)
{
    const char *at;
    int kind = number(p, end, powers, value, &at);
    if (kind == 0 && at == stop)
        return 0;
    if (kind == NONFINITE && at == stop)
        return NONFINITE;
    return unlike_number(p, stop);
}

/* ---- LIBSVM --------------------------------------------------------------------- */

struct pairs {
    const char *text, *end;
    int64_t base;
    const uint64_t *powers;
    double *labels, *values;
    int32_t *starts, *indices;
    int64_t *queries;
    int queried; /* 1: every row has a qid, 0: none has, -1: it does not matter */
    int64_t row_room, pair_room, rows, count, lowest, highest;
    const char *at; /* of what is refused */
};

static const char *token_end(const char *p)
{
    while (!ends_token(*p))
        p++;
    return p;
}

/* The label at p; its end in *stop. */
static int read_label(struct pairs *s, const char *p, const char **stop)
{
    double value;
    int kind = number(p, s->end, s->powers, &value, stop);
    if (kind || !ends_token(**stop)) {
        *stop = token_end(p);
        s->at = p;
        if (memchr(p, ':', (size_t)(*stop - p)))
            return LABEL;
        return whole_number(p, *stop, s->end, s->powers, &value);
    }
    if (s->labels) {
        if (s->rows >= s->row_room)
            return ROOM;
        s->labels[s->rows] = value;
    }
    return 0;
}

/* `qid:n` behind the label at `row`, if there is one. */
static int read_query(struct pairs *s, const char *row, const char **p)
{
    const char *at = skip_blanks(*p), *stop;
    int64_t query = 0;
    int large = 0;
    if (at[0] != 'q' || at[1] != 'i' || at[2] != 'd' || at[3] != ':') {
        s->at = row;
        if (s->queries)
            s->queries[s->rows] = -1;
        return s->queried == 1 ? MIXED : 0;
    }
    for (stop = at + 4; is_digit(*stop); stop++) {
        int digit = *stop - '0';
        large = large || query > (INT64_MAX - digit) / 10;
        query = large ? query : query * 10 + digit;
    }
    s->at = at;
    if (stop == at + 4 || !ends_token(*stop) || large)
        return QID;
    if (s->queried == 0)
        return MIXED;
    if (s->queries)
        s->queries[s->rows] = query;
    *p = stop;
    return 0;
}

/* The pair at p; its end in *stop. `before` is the index before it in the row. */
static inline int read_pair(struct pairs *s, const char *p, int64_t *before,
                            const char **stop)
{
    const char *c = p;
    uint64_t index = 0;
    double value;
    int kind;
    while (is_digit(*c)) {
        index = index > INT32_MAX ? index : index * 10 + (uint64_t)(*c - '0');
        c++;
    }
    s->at = p;
    if (*c != ':' || c == p)
        return memchr(p, ':', (size_t)(token_end(p) - p)) ? INDEX : PAIR;
    if (index > INT32_MAX)
        return LARGE;
    if ((int64_t)index < s->base)
        return BELOW;
    if ((int64_t)index <= *before)
        return (int64_t)index == *before ? DUPLICATE : UNSORTED;
    c++;
    if (is_digit(*c) && ends_token(c[1])) { /* nearly all of one-hot data */
        value = *c - '0';
        *stop = c + 1;
    } else {
        kind = number(c, s->end, s->powers, &value, stop);
        if (kind || !ends_token(**stop))
            return whole_number(c, token_end(c), s->end, s->powers, &value);
    }
    if (s->values) {
        if (s->count >= s->pair_room)
            return ROOM;
        s->values[s->count] = value;
        s->indices[s->count] = (int32_t)((int64_t)index - s->base);
    }
    s->count++;
    *before = (int64_t)index;
    return 0;
}

static int read_pairs(struct pairs *s, const char **from)
{
    int64_t before = -1, first = s->count, lowest = -1;
    const char *p = skip_blanks(*from);
    while (*p != '\n' && *p != '#') {
        int kind = read_pair(s, p, &before, &p);
        if (kind)
            return kind;
        if (lowest < 0)
            lowest = before;
        p = skip_blanks(p);
    }
    if (s->count > first) {
        s->lowest = lowest < s->lowest ? lowest : s->lowest;
        s->highest = before > s->highest ? before : s->highest;
    }
    *from = p;
    return 0;
}

static int read_rows(struct pairs *s)
{
    const char *p = s->text;
    int kind;
    while (p < s->end) {
        const char *row = p = skip_blanks(p);
        if (*p != '\n' && *p != '#') {
            if ((kind = read_label(s, p, &p)) || (kind = read_query(s, row, &p)) ||
                (kind = read_pairs(s, &p)))
                return kind;
            s->rows++;
            if (s->starts)
                s->starts[s->rows] = (int32_t)s->count;
        }
        while (*p != '\n')
            p++;
        p++;
    }
    return 0;
}

/* Rows of LIBSVM text. The arrays have room for `row_room` rows (`starts` for one more)
   and `pair_room` pairs, or are all NULL: then the text is only gone through; `queries`,
   -1 where there is no qid, may be NULL by itself. `queried`: see struct pairs. `found`:
   rows, pairs, lowest and highest index as written, position of what is refused. */
EXPORT int hpcsgd_parse_libsvm(const char *text, int64_t size, int64_t base,
                               const uint64_t *powers, double *labels, int32_t *starts,
                               int32_t *indices, double *values, int64_t *queries,
                               int queried, int64_t row_room, int64_t pair_room,
                               int64_t *found)
{
    struct pairs s = {
        .text = text,       .end = text + size,     .base = base,
        .powers = powers,   .labels = labels,       .values = values,
        .starts = starts,   .indices = indices,     .queries = queries,
        .queried = queried, .row_room = row_room,   .pair_room = pair_room,
        .lowest = INT64_MAX, .highest = -1,         .at = text,
    };
    int kind = size > 0 && text[size - 1] != '\n' ? UNENDED : 0;
    if (starts)
        starts[0] = 0;
    if (!kind)
        kind = read_rows(&s);
    found[0] = s.rows;
    found[1] = s.count;
    found[2] = s.highest < 0 ? -1 : s.lowest;
    found[3] = s.highest;
    found[4] = s.at - text;
    return kind;
}

/* ---- delimited columns ---------------------------------------------------------- */

struct table {
    const char *text, *end;
    char delimiter;
    int64_t fields, features, extras, texts;
    const int32_t *places;
    const uint64_t *powers;
    int missing_allowed;
    double *X, *other;
    int64_t *spans;
    int64_t room, rows;
    const char *at;
    int spaced; /* fields are apart by runs of blanks, of any kind */
};

static inline int pads(const struct table *s, char c)
{
    return is_blank(c) && (s->spaced || c != s->delimiter);
}

static inline int ends_field(const struct table *s, char c, int spaced)
{
    return c == '\n' || (spaced ? is_blank(c) : c == s->delimiter);
}

static int is_missing(const char *p, const char *stop)
{
    static const char *const words[] = {"",     "na",   "n/a",  "nan", "-nan",
                                        "+nan", "null", "none", "?"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (same_word(p, stop, words[i]))
            return 1;
    return 0;
}

static void trim(const struct table *s, const char **p, const char **stop)
{
    while (*p < *stop && pads(s, **p))
        (*p)++;
    while (*p < *stop && pads(s, (*stop)[-1]))
        (*stop)--;
}

/* Behind the quote that closes the one at p, two of them standing for one inside; p
   where the line has none. */
static const char *behind_quotes(const char *p)
{
    for (const char *c = p + 1; *c != '\n'; c++) {
        if (*c != '"')
            continue;
        if (c[1] != '"')
            return c + 1;
        c++;
    }
    return p;
}

/* The bytes *p..*last of the field at *p without blanks and quotes around them; its end
   in *stop. */
static void bare_field(struct table *s, const char **p, const char **last,
                       const char **stop)
{
    const char *c = *p;
    s->at = c;
    while (pads(s, *c))
        c++;
    if (*c == '"')
        c = behind_quotes(c);
    while (!ends_field(s, *c, s->spaced))
        c++;
    *stop = *last = c;
    trim(s, p, last);
    if (*last - *p >= 2 && **p == '"' && (*last)[-1] == '"') {
        (*p)++;
        (*last)--;
        trim(s, p, last);
    }
}

/* The field at p, blanks, quotes and missing values included; its end in *stop. */
static int any_field(struct table *s, const char *p, int64_t field, double *value,
                     const char **stop)
{
    const char *last;
    int kind;
    bare_field(s, &p, &last, stop);
    kind = is_missing(p, last) ? MISSING
                               : whole_number(p, last, s->end, s->powers, value);
    if (kind != MISSING || !s->missing_allowed || s->places[field] < 0)
        return kind;
    *value = NAN;
    return 0;
}

static inline int one_field(struct table *s, const char *p, int64_t field,
                            double *value, const char **stop, int spaced)
{
    int kind = number(p, s->end, s->powers, value, stop);
    if (kind == 0 && ends_field(s, **stop, spaced))
        return 0;
    return any_field(s, p, field, value, stop);
}

/* Where the text of the field at p begins and ends, for text column `column`. */
static void text_field(struct table *s, const char *p, int64_t column,
                       const char **stop)
{
    const char *last;
    int64_t *span = s->spans + 2 * (s->rows * s->texts + column);
    bare_field(s, &p, &last, stop);
    span[0] = p - s->text;
    span[1] = last - s->text;
}

/* `spaced` is s->spaced, as a constant of two copies of the loop. */
static inline __attribute__((always_inline)) int read_fields(struct table *s,
                                                             const char *line,
                                                             const char **stop,
                                                             int spaced)
{
    const char *p = line;
    int64_t field = 0;
    int kind;
    if (s->rows >= s->room)
        return ROOM;
    for (;; field++) {
        double value;
        int64_t place;
        if (spaced)
            p = skip_blanks(p);
        s->at = line;
        if (field >= s->fields)
            return RAGGED;
        place = s->places[field];
        if (place >= s->features)
            text_field(s, p, place - s->features, &p);
        else if ((kind = one_field(s, p, field, &value, &p, spaced)))
            return kind;
        else if (place >= 0)
            s->X[s->rows * s->features + place] = value;
        else
            s->other[s->rows * s->extras - 1 - place] = value;
        if (spaced)
            p = skip_blanks(p);
        if (*p == '\n')
            break;
        p += !spaced;
    }
    *stop = p;
    s->at = line;
    return field + 1 == s->fields ? 0 : RAGGED;
}

static int read_line(struct table *s, const char *line, const char **stop)
{
    return s->spaced ? read_fields(s, line, stop, 1) : read_fields(s, line, stop, 0);
}

static inline const char *first_of_line(const struct table *s, const char *p)
{
    while (pads(s, *p))
        p++;
    return p;
}

/* Rows of delimited text; a space as delimiter stands for blanks of any kind and number.
   Field f goes to column places[f] of X (room × features); below 0 to column
   −1 − places[f] of `other` (room × extras); from `features` on its text is at the bytes
   spans[row][places[f] − features] (room × texts × 2) of the text. `found`: rows,
   position of what is refused. */
EXPORT int hpcsgd_parse_csv(const char *text, int64_t size, int delimiter,
                            int64_t fields, int64_t features, int64_t extras,
                            int64_t texts, const int32_t *places,
                            const uint64_t *powers, int missing_allowed, double *X,
                            double *other, int64_t *spans, int64_t room,
                            int64_t *found)
{
    struct table s = {
        .text = text,         .end = text + size,
        .fields = fields,     .features = features,
        .extras = extras,     .texts = texts,
        .places = places,     .powers = powers,
        .X = X,               .other = other,
        .spans = spans,       .room = room,
        .at = text,           .missing_allowed = missing_allowed,
        .spaced = delimiter == ' ', .delimiter = (char)delimiter,
    };
    const char *p = text;
    int kind = size > 0 && text[size - 1] != '\n' ? UNENDED : 0;
    while (!kind && p < s.end) {
        const char *first = first_of_line(&s, p);
        if (*first == '\n') {
            p = first + 1;
            continue;
        }
        kind = read_line(&s, p, &p);
        if (!kind) {
            s.rows++;
            p++;
        }
    }
    found[0] = s.rows;
    found[1] = s.at - text;
    return kind;
}

/* Lines that are not blank, in a text that ends with a newline. */
EXPORT int64_t hpcsgd_count_lines(const char *text, int64_t size, int delimiter)
{
    struct table s = {.text = text,
                      .end = text + size,
                      .delimiter = (char)delimiter,
                      .spaced = delimiter == ' '};
    const char *p = text;
    int64_t rows = 0;
    while (p < s.end) {
        p = first_of_line(&s, p);
        rows += *p != '\n';
        p = (const char *)memchr(p, '\n', (size_t)(s.end - p)) + 1;
    }
    return rows;
}
