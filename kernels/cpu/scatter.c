/* Runs of bytes of a file, put where the rows of a matrix lie in memory.

   The system writes each row to its place (preadv), a thousand rows a call, so nothing is
   copied a second time. One call of ours reads all runs of a block: the caller's
   interpreter is free meanwhile, and its lock changes hands once a block. */

#define _DEFAULT_SOURCE
#include <errno.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#define EXPORT __attribute__((visibility("default")))
#define MOST 1023 /* pieces of one call; 1024 is what every system allows */

/* Fill `height` rows of `width` bytes, `stride` bytes apart, from bytes that lie behind
   one another in a file; `before` and `after` bytes beside each row are passed over into
   `passed`. Returns how many bytes of the file were there, or −errno. */
static int64_t read_rows(int file, int64_t offset, char *out, int64_t height,
                         int64_t width, int64_t stride, int64_t before, int64_t after,
                         char *passed)
{
    int64_t row_bytes = before + width + after, whole = height * row_bytes, done = 0;
    if (stride == width && row_bytes == width) { /* one piece */
        width = row_bytes = whole;
        height = 1;
    }
    while (done < whole) {
        struct iovec pieces[MOST];
        int count = 0;
        int64_t at = done;
        while (at < whole && count + 3 <= MOST) {
            int64_t row = at / row_bytes, in = at % row_bytes;
            if (in < before) {
                pieces[count++] = (struct iovec){passed, (size_t)(before - in)};
                in = before;
            }
            if (in < before + width) {
                int64_t skip = in - before;
                pieces[count++] = (struct iovec){out + row * stride + skip,
                                                 (size_t)(width - skip)};
                in = before + width;
            }
            if (in < row_bytes)
                pieces[count++] = (struct iovec){passed, (size_t)(row_bytes - in)};
            at = (row + 1) * row_bytes;
        }
        ssize_t got = preadv(file, pieces, count, (off_t)(offset + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -(int64_t)errno;
        if (got == 0)
            break;
        done += got;
    }
    return done;
}

/* A run is six numbers: where it begins in the file, where in `out`, how many rows, how
   many bytes of each, and the bytes before and after them. Returns 0; the byte at which
   the file ended too early; or −errno. */
EXPORT int64_t hpcsgd_read_runs(int file, const int64_t *runs, int64_t count, char *out,
                                int64_t stride, char *passed)
{
    for (const int64_t *run = runs; run < runs + 6 * count; run += 6) {
        int64_t got = read_rows(file, run[0], out + run[1], run[2], run[3], stride,
                                run[4], run[5], passed);
        if (got < 0)
            return got;
        if (got < run[2] * (run[4] + run[3] + run[5]))
            return run[0] + got;
    }
    return 0;
}
