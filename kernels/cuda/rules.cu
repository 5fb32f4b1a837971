/* The steps of replicas that hold slices: a word of weights a thread, wherever it lies.

   Weights are kept divided by `scale`, a power of two; what is kept beside them is not.
   What is read at `weights` is written to `to`, which may be the same place: replicas
   send one slice while the whole is still read. Every sum and product is rounded by
   itself, in the order of the host, so that the same gradient gives the same bits.
   `factor` times the gradient is the mean of all replicas, `l2` the penalty's.
   grid = ceil(count / 256), block = 256. */
#include "device.cuh"

#define WORD ((s64)blockIdx.x * 256 + threadIdx.x)

/* g = factor * gradient + l2 w. */
INLINE float whole_gradient(float gradient, float factor, float l2, float weight)
{
    float mean = exact_product(gradient, factor);
    return l2 != 0.0f ? exact_sum(mean, exact_product(l2, weight)) : mean;
}

/* w = carry w + gain g. */
extern "C" __global__ void __launch_bounds__(256)
step_plain(s64 count, const float *weights, float *to,
           const float *__restrict__ gradient, float scale, float carry, float gain)
{
    s64 i = WORD;
    if (i >= count)
        return;
    float weight = exact_product(exact_product(weights[i], scale), carry);
    to[i] = exact_quotient(exact_sum(weight, exact_product(gradient[i], gain)), scale);
}
LAUNCHABLE(step_plain)

/* [w | v] = carry [w | v] + gain g: momentum, and both of its kin. */
extern "C" __global__ void __launch_bounds__(256)
step_momentum(s64 count, const float *weights, float *to, float *__restrict__ velocity,
              const float *__restrict__ gradient, float scale, float carry_ww,
              float carry_wv, float carry_vw, float carry_vv, float gain_w, float gain_v)
{
    s64 i = WORD;
    if (i >= count)
        return;
    float w = exact_product(weights[i], scale), v = velocity[i], g = gradient[i];
    float moved = exact_sum(exact_product(carry_ww, w), exact_product(carry_wv, v));
    float faster = exact_sum(exact_product(carry_vw, w), exact_product(carry_vv, v));
    to[i] = exact_quotient(exact_sum(moved, exact_product(gain_w, g)), scale);
    velocity[i] = exact_sum(faster, exact_product(gain_v, g));
}
LAUNCHABLE(step_momentum)

/* h = h + g²;  w = w + step g / (sqrt(h) + epsilon); the step is a rate times -1. */
extern "C" __global__ void __launch_bounds__(256)
step_adagrad(s64 count, const float *weights, float *to, float *__restrict__ squares,
             const float *__restrict__ gradient, float scale, float factor, float l2,
             float step, float epsilon)
{
    s64 i = WORD;
    if (i >= count)
        return;
    float w = exact_product(weights[i], scale);
    float g = whole_gradient(gradient[i], factor, l2, w);
    float h = exact_sum(squares[i], exact_product(g, g));
    float below = exact_sum(exact_root(h), epsilon);
    squares[i] = h;
    float move = exact_quotient(exact_product(g, step), below);
    to[i] = exact_quotient(exact_sum(w, move), scale);
}
LAUNCHABLE(step_adagrad)

/* m = beta1 m + part1 g;  v = beta2 v + part2 g²;
   w = w + step m / (sqrt(v mend) + epsilon), both corrected for their beginnings. */
extern "C" __global__ void __launch_bounds__(256)
step_adam(s64 count, const float *weights, float *to, float *__restrict__ mean,
          float *__restrict__ square, const float *__restrict__ gradient, float scale,
          float factor, float l2, float beta1, float part1, float beta2, float part2,
          float mend, float step, float epsilon)
{
    s64 i = WORD;
    if (i >= count)
        return;
    float w = exact_product(weights[i], scale);
    float g = whole_gradient(gradient[i], factor, l2, w);
    float v = exact_sum(exact_product(square[i], beta2),
                        exact_product(part2, exact_product(g, g)));
    float m = exact_sum(exact_product(mean[i], beta1), exact_product(g, part1));
    float below = exact_sum(exact_root(exact_product(v, mend)), epsilon);
    mean[i] = m;
    square[i] = v;
    float move = exact_product(exact_quotient(m, below), step);
    to[i] = exact_quotient(exact_sum(w, move), scale);
}
LAUNCHABLE(step_adam)

/* sum = sum + part, or part where nothing is there yet. */
extern "C" __global__ void __launch_bounds__(256)
add_words(s64 count, const float *__restrict__ part, int is_first,
          float *__restrict__ sum)
{
    s64 i = WORD;
    if (i < count)
        sum[i] = is_first ? part[i] : exact_sum(sum[i], part[i]);
}
LAUNCHABLE(add_words)
