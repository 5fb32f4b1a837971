/* The text parser under the sanitizers, on damaged text: no byte outside of the text and
   of the arrays may be touched, nothing undefined done, and every number must be the one
   of strtod.

   harness SECONDS SEED POWERS CRASH FILE...: FILEs are the valid texts, POWERS holds the
   table of powers of five. The text in hand is written to CRASH when something is wrong;
   0 ends a run in which nothing was. */

#include "../../kernels/cpu/parse.c"

#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define LONGEST 4096
#define MOST_SEEDS 512
#define POWER_COUNT (HIGHEST_POWER - LOWEST_POWER + 1)

void __sanitizer_set_death_callback(void (*call)(void));

static uint64_t state;
static uint64_t powers[2 * POWER_COUNT];
static const char *crash;
static char *in_hand;
static size_t held;
static struct { char *text; size_t size; } seeds[MOST_SEEDS];
static int seed_count;

static uint64_t draw(uint64_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return below ? (state * 0x2545F4914F6CDD1Du >> 11) % below : 0;
}

static void keep(void)
{
    FILE *file = fopen(crash, "wb");
    if (file) {
        fwrite(in_hand, 1, held, file);
        fclose(file);
    }
}

static void too_slow(int signal)
{
    (void)signal;
    keep();
    _exit(3);
}

static void wrong(const char *what)
{
    fprintf(stderr, "harness: %s\n", what);
    keep();
    exit(1);
}

/* ---- damage --------------------------------------------------------------------- */

static const char *const words[] = {
    "1", "0", "9", ".", "e", "E", "-", "+", ":", "#", ",", ";", "\t", "\n", "\r\n", " ",
    "nan", "inf", "NA", "?", "\"", "qid:", "\v", "\f", "1e22", "5e-324", "1e309", "0x1p3",
    "2.4703282292062327e-324", "9007199254740993", "18446744073709551617:1", "\xff\xfe",
    "2147483648:1", "1e-99999999999999999999", "12345678.12345678", "\xc2\xa0"};

static size_t put(char *text, size_t size, size_t at, const char *from, size_t count)
{
    if (count > LONGEST - size)
        count = LONGEST - size;
    memmove(text + at + count, text + at, size - at);
    memcpy(text + at, from, count);
    return size + count;
}

static size_t put_number(char *text, size_t size, size_t at)
{
    char digits[64];
    size_t count = 1 + draw(40), point = draw(60);
    for (size_t i = 0; i < count; i++)
        digits[i] = i == point ? '.' : (char)('0' + draw(10));
    if (draw(2))
        count += (size_t)snprintf(digits + count, 16, "e%d", (int)draw(700) - 350);
    return put(text, size, at, digits, count);
}

/* A number half way between two doubles, or one beside it in its last digit. */
static size_t put_tie(char *text, size_t size, size_t at)
{
    char digits[64];
    int power = (int)draw(28) - 4, count;
    uint64_t five = 1, w, lowest;
    for (int i = power < 0 ? -power : power; i; i--)
        five *= 5;
    if (power < 0) { /* 54 bits, the last one set, over 2^-power */
        w = (((uint64_t)1 << 53) | draw((uint64_t)1 << 53) | 1) * five;
    } else { /* w · 5^power has 54 bits, the last one set */
        lowest = ((uint64_t)1 << 53) / five;
        w = (lowest + 1 + draw(lowest + 1)) | 1;
    }
    w += draw(4) ? 0 : draw(3) - 1;
    count = snprintf(digits, sizeof digits, "%llue%d", (unsigned long long)w, power);
    return put(text, size, at, digits, (size_t)count);
}

static size_t change(char *text, size_t size)
{
    size_t at = draw(size + 1), count = draw(12);
    char piece[64];
    switch (draw(7)) {
    case 0:
        if (at < size)
            text[at] = (char)draw(256);
        return size;
    case 1:
        return draw(8) ? size : at;
    case 2:
        count = count > size - at ? size - at : count;
        memmove(text + at, text + at + count, size - at - count);
        return size - count;
    case 3:
        return put_number(text, size, at);
    case 4: {
        int other = (int)draw((uint64_t)seed_count);
        size_t from = draw(seeds[other].size + 1), left = seeds[other].size - from;
        return put(text, size, at, seeds[other].text + from, draw(left + 1));
    }
    case 5:
        count = draw(size - at + 1);
        count = count > sizeof piece ? sizeof piece : count;
        memcpy(piece, text + at, count);
        return put(text, size, draw(size + 1), piece, count);
    default: {
        const char *word = words[draw(sizeof words / sizeof *words)];
        return put(text, size, at, word, strlen(word));
    }
    }
}

/* ---- what is looked at ---------------------------------------------------------- */

static int64_t count_of(const char *text, size_t size, char byte)
{
    int64_t count = 0;
    for (size_t i = 0; i < size; i++)
        count += text[i] == byte;
    return count;
}

/* An array without a byte to spare: the sanitizer sees the first one too many. */
static void *array(int64_t count, size_t each)
{
    return malloc((size_t)count * each);
}

static void try_libsvm(const char *text, size_t size, int base, int queried)
{
    int64_t rows = count_of(text, size, '\n'), pairs = count_of(text, size, ':');
    int64_t found[5], again[5];
    double *labels = array(rows, 8), *values = array(pairs, 8);
    int32_t *starts = array(rows + 1, 4), *indices = array(pairs, 4);
    int64_t *queries = array(rows, 8);
    int kept = hpcsgd_parse_libsvm(text, (int64_t)size, base, powers, labels, starts,
                                   indices, values, queries, queried, rows, pairs,
                                   found);
    int passed = hpcsgd_parse_libsvm(text, (int64_t)size, base, powers, NULL, NULL, NULL,
                                     NULL, NULL, queried, 0, 0, again);
    if (kept != passed || memcmp(found, again, sizeof found))
        wrong("LIBSVM that is kept differs from what is gone through");
    if (kept == ROOM || kept == UNENDED || found[4] < 0 || found[4] > (int64_t)size)
        wrong("LIBSVM: no room, or a place outside of the text");
    for (int64_t i = 0; !kept && i < found[1]; i++)
        if (indices[i] < 0 || !isfinite(values[i]))
            wrong("LIBSVM: a bad pair was let through");
    for (int64_t i = 0; !kept && i < found[0]; i++)
        if (queries[i] < (queried == 1 ? 0 : -1) || (queried == 0 && queries[i] >= 0))
            wrong("LIBSVM: a qid that should not be, or none where one should");
    free(queries);
    free(labels);
    free(values);
    free(starts);
    free(indices);
}

/* Three fields: a label, a number, and one that is a number as well or else a text. */
static void try_csv(const char *text, size_t size, char delimiter, int allowed,
                    int texts)
{
    static const int32_t places[] = {-1, 0, 1};
    int features = 2 - texts;
    int64_t rows = hpcsgd_count_lines(text, (int64_t)size, delimiter), found[2];
    double *X = array(rows * features, 8), *other = array(rows, 8);
    int64_t *spans = array(rows * texts, 16);
    int kind = hpcsgd_parse_csv(text, (int64_t)size, delimiter, 3, features, 1, texts,
                                places, powers, allowed, X, other, spans, rows, found);
    if (kind == ROOM || kind == UNENDED || (kind == 0 && found[0] != rows))
        wrong("CSV: other rows than lines");
    if (found[1] < 0 || found[1] > (int64_t)size)
        wrong("CSV: a place outside of the text");
    for (int64_t i = 0; !kind && i < features * rows; i++)
        if (isinf(X[i]) || (isnan(X[i]) && !allowed))
            wrong("CSV: a bad value was let through");
    for (int64_t i = 0; !kind && i < texts * rows; i++)
        if (spans[2 * i] < 0 || spans[2 * i] > spans[2 * i + 1] ||
            spans[2 * i + 1] >= (int64_t)size)
            wrong("CSV: a text outside of the line");
    free(spans);
    free(X);
    free(other);
}

/* The number that the text begins with, from its own copy, beside strtod's. */
static void try_number(const char *text, size_t size)
{
    const char *stop, *digits = text + (*text == '-' || *text == '+');
    char *after;
    double value, other;
    int kind = number(text, text + size, powers, &value, &stop);
    if (kind == NUMBER)
        return;
    if (digits[0] == '0' && (digits[1] | 32) == 'x')
        return; /* strtod reads hexadecimals */
    other = strtod(text, &after);
    if (after != stop || memcmp(&value, &other, 8))
        wrong("a number that is not strtod's");
}

static void look_at(const char *text, size_t size)
{
    for (int queried = -1; queried <= 1; queried++) {
        try_libsvm(text, size, 0, queried);
        try_libsvm(text, size, 1, queried);
    }
    for (int k = 0; k < 16; k++)
        try_csv(text, size, ",\t; "[k / 4], k % 2, k / 2 % 2);
}

static void load(const char *path)
{
    FILE *file = fopen(path, "rb");
    char *text = malloc(LONGEST);
    if (!file || seed_count == MOST_SEEDS) {
        fprintf(stderr, "harness: %s cannot be taken\n", path);
        exit(2);
    }
    seeds[seed_count].text = text;
    seeds[seed_count++].size = fread(text, 1, LONGEST, file);
    fclose(file);
}

/* One text of exactly its size, looked at; so the sanitizer sees a byte too far. */
static void round_of(char *text, size_t size, void (*look)(const char *, size_t))
{
    in_hand = malloc(size + 1);
    memcpy(in_hand, text, size);
    in_hand[size] = '\n';
    held = size + 1;
    alarm(20);
    look(in_hand, held);
    free(in_hand);
}

int main(int count, char **arguments)
{
    static char text[LONGEST];
    uint64_t texts = 0, numbers = 0;
    time_t end;
    FILE *file;
    if (count < 6 || !(file = fopen(arguments[3], "rb")) ||
        fread(powers, 16, POWER_COUNT, file) != POWER_COUNT) {
        fprintf(stderr, "harness SECONDS SEED POWERS CRASH FILE...\n");
        return 2;
    }
    fclose(file);
    end = time(NULL) + atoi(arguments[1]);
    state = 0x9E3779B97F4A7C15u * (uint64_t)(atoi(arguments[2]) + 1);
    crash = arguments[4];
    for (int i = 5; i < count; i++)
        load(arguments[i]);
    __sanitizer_set_death_callback(keep);
    signal(SIGALRM, too_slow);
    for (int i = 0; i < seed_count; i++)
        round_of(seeds[i].text, seeds[i].size, look_at);
    while (time(NULL) < end) {
        int from = (int)draw((uint64_t)seed_count);
        size_t size = seeds[from].size;
        memcpy(text, seeds[from].text, size);
        for (uint64_t changes = 1 + draw(8); changes; changes--)
            size = change(text, size);
        round_of(text, size, look_at);
        texts++;
        for (int i = 0; i < 100; i++, numbers++) {
            int kind = (int)draw(8);
            if (kind < 6)
                size = kind < 2 ? put_tie(text, 0, 0) : put_number(text, 0, 0);
            round_of(text, size, try_number);
            size = change(text, size);
        }
    }
    printf("sanitizers: %llu texts, %llu numbers, nothing wrong\n",
           (unsigned long long)texts, (unsigned long long)numbers);
    return 0;
}
