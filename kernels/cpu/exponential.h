/* e^x of eight floats at once: a library takes them one by one.

   x = k log 2 + r with |r| <= log(2) / 2, log 2 in two parts so that k times the first is
   exact; e^r by its series to r^7, which is off by less than a tenth of the last place;
   2^k in two factors, since one of them could not be written for the smallest and the
   largest results. Off by at most 1.1 units in the last place; infinite, 0 and no number
   where the library says so. */

#ifndef HPCSGD_EXPONENTIAL_H
#define HPCSGD_EXPONENTIAL_H

#include "lanes.h"

typedef int32_t whole __attribute__((vector_size(4 * LANES)));

/* a where it is so, b elsewhere. */
INLINE lanes pick(whole so, lanes a, lanes b)
{
    return (lanes)((so & (whole)a) | (~so & (whole)b));
}

INLINE lanes lesser(lanes a, lanes b) { return pick(a < b, a, b); }

INLINE lanes all_of(float value)
{
    return (lanes){value, value, value, value, value, value, value, value};
}

INLINE lanes two_to(whole k)
{
    return (lanes)((k + 127) << 23);
}

INLINE lanes exp_lanes(lanes x)
{
    const float nearest = 12582912.0f; /* 1.5 * 2^23: no digits behind the point */
    /* What is no number stands second, and stays. */
    x = lesser(all_of(89.0f), x);    /* infinite from there on */
    x = -lesser(all_of(104.0f), -x); /* and 0 */
    lanes shifted = x * 1.44269504f + nearest;
    lanes k = shifted - nearest;
    lanes r = x - k * 0.693359375f;
    r = r + k * 2.12194440e-4f;
    lanes sum = 1.98412698e-4f * r + 1.38888889e-3f;
    sum = sum * r + 8.33333333e-3f;
    sum = sum * r + 4.16666667e-2f;
    sum = sum * r + 1.66666667e-1f;
    sum = sum * r + 0.5f;
    sum = sum * (r * r) + r + 1.0f;
    whole power = (whole)shifted - 0x4b400000; /* the bits of `nearest` */
    whole part = power >> 1;
    return sum * two_to(part) * two_to(power - part);
}

#endif
